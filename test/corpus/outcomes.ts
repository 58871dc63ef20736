/**
 * The outcome of every corpus case as a digest: the ledger entry and the decision inputs, which `tallygate explain`
 * compares to the byte. Recorded with the engine version in `engine-outcomes.json`.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { accessEntryText, decisionInputsText } from '../../src/agent/access/entry-text.ts'
import { BalancesSeen } from '../../src/agent/access/local-decisions.ts'
import { compilePolicy } from '../../src/core/rules/compile.ts'
import { decide } from '../../src/core/rules/decide.ts'
import { sha256 } from '../../src/protocol/signing.ts'
import { availableOfCase, clockOfCase, policyOfCase, requestOfCase } from './case-domain.ts'
import { type LoadedCase, loadCorpus } from './load-corpus.ts'

const recorded = z.strictObject({
  engine: z.int().min(1),
  oldest: z.int().min(1),
  outcomes: z.record(z.string(), z.string()),
})
export type Outcomes = z.infer<typeof recorded>

export const OUTCOMES_FILE = join(import.meta.dirname, '..', 'core', 'engine-outcomes.json')

export function recordedOutcomes(): Outcomes {
  return recorded.parse(JSON.parse(readFileSync(OUTCOMES_FILE, 'utf8')))
}

export function currentOutcomes(): Outcomes['outcomes'] {
  return Object.fromEntries(loadCorpus().map((each) => [each.file, outcomeOf(each)]))
}

/** Cases whose recorded outcome is another one now. */
export function changedCases(before: Outcomes['outcomes'], now: Outcomes['outcomes']): readonly string[] {
  return Object.keys(before).filter((file) => now[file] !== undefined && now[file] !== before[file])
}

/** With fixed ids and without the engine version, so that only the decision counts. */
function outcomeOf(each: LoadedCase): string {
  const [policy, request, reading] = [policyOfCase(each), requestOfCase(each), clockOfCase(each)]
  const seen = new BalancesSeen(availableOfCase(each))
  const decision = decide(compilePolicy(policy).at(reading), request, seen.of, each.mode)
  const metaData = request.items.map(() => undefined)
  const ids = { n: 1, policyRevision: 1, engine: 1, correlationId: policy.instanceId }
  const text = accessEntryText({ ...ids, reading, instanceId: policy.instanceId, request, metaData, decision })
  return sha256(`${text}\n${decisionInputsText('v1.1', seen.balances(), request.requester.dictionary)}`).slice(0, 16)
}
