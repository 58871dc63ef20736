import { expect, test } from 'vitest'
import { ENGINE, outdatedSide } from '../../src/core/engine.ts'
import { changedCases, currentOutcomes, recordedOutcomes } from '../corpus/outcomes.ts'

test('every engine version decides the cases of the corpus in its own, recorded way', () => {
  const { engine, oldest, outcomes } = recordedOutcomes()
  const now = currentOutcomes()
  expect(
    ENGINE.version === engine ? changedCases(outcomes, now) : [],
    'These decisions change. If that is intended, raise ENGINE.version in src/core/engine.ts, and run `node test/corpus/record-outcomes.ts`.',
  ).toEqual([])
  expect(
    { engine, oldest, outcomes },
    'The corpus or the engine version is new. Run `node test/corpus/record-outcomes.ts`, and commit the file.',
  ).toEqual({ engine: ENGINE.version, oldest: ENGINE.oldest, outcomes: now })
})

test('an engine works with itself', () => {
  expect(ENGINE.oldest).toBeLessThanOrEqual(ENGINE.version)
  expect(outdatedSide(ENGINE, ENGINE)).toBeNull()
})

test.each([
  ['the same engine on both sides', { version: 4, oldest: 4 }, { version: 4, oldest: 4 }, null],
  ['an older agent that the cloud still supports', { version: 3, oldest: 1 }, { version: 4, oldest: 3 }, null],
  ['an older agent that the cloud supports no more', { version: 2, oldest: 1 }, { version: 4, oldest: 3 }, 'AGENT'],
  ['a newer agent that still uses the rules of the cloud', { version: 4, oldest: 3 }, { version: 3, oldest: 1 }, null],
  ['a newer agent that no longer uses them', { version: 4, oldest: 3 }, { version: 2, oldest: 1 }, 'CLOUD'],
] as const)('names the side to upgrade: %s', (_what, agent, cloud, expected) => {
  expect(outdatedSide(agent, cloud)).toBe(expected)
})
