/** `node test/corpus/record-outcomes.ts` records the outcomes of new cases, or of a new engine version. */
import { writeFileSync } from 'node:fs'
import { ENGINE } from '../../src/core/engine.ts'
import { OUTCOMES_FILE, changedCases, currentOutcomes, recordedOutcomes } from './outcomes.ts'

const before = recordedOutcomes()
const outcomes = currentOutcomes()
const changed = [
  ...changedCases(before.outcomes, outcomes),
  ...(before.oldest === ENGINE.oldest ? [] : ['ENGINE.oldest']),
]
if (changed.length > 0 && ENGINE.version <= before.engine) {
  throw new Error(`${changed.join(', ')} changed: raise ENGINE.version in src/core/engine.ts above ${before.engine}.`)
}
writeFileSync(
  OUTCOMES_FILE,
  `${JSON.stringify({ engine: ENGINE.version, oldest: ENGINE.oldest, outcomes }, null, 2)}\n`,
)
