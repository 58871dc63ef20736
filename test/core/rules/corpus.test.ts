/**
 * Runs every case of the corpus through the engine, and through the naive evaluator as well: a case whose wanted answer
 * is wrong cannot be made to pass by a matching mistake in one of them.
 */
import { describe, expect, test } from 'vitest'
import { compilePolicy } from '../../../src/core/rules/compile.ts'
import { decide } from '../../../src/core/rules/decide.ts'
import { REFUSAL_REASONS } from '../../../src/core/rules/refusal-reasons.ts'
import { answerOf, clockOfCase, policyOfCase, requestOfCase, availableOfCase } from '../../corpus/case-domain.ts'
import { loadCorpus } from '../../corpus/load-corpus.ts'
import { naiveDecide } from './naive-evaluator.ts'

const corpus = loadCorpus()

describe('the engine answers every case of the corpus', () => {
  test.each(corpus.map((each) => [each.file, each.name, each] as const))('%s: %s', (_file, _name, each) => {
    const decision = decide(
      compilePolicy(policyOfCase(each)).at(clockOfCase(each)),
      requestOfCase(each),
      availableOfCase(each),
      each.mode,
    )
    expect(answerOf(each, decision)).toStrictEqual(each.want)
  })
})

describe('the naive evaluator answers every case of the corpus', () => {
  test.each(corpus.map((each) => [each.file, each] as const))('%s', (_file, each) => {
    const { items, postings, warnings } = naiveDecide(
      policyOfCase(each),
      requestOfCase(each),
      clockOfCase(each),
      availableOfCase(each),
      each.mode,
    )
    const withRejectionDetails = items.map((item) =>
      item.outcome === 'REFUSED' ? { ...item, rejectionDetails: [] } : item,
    )
    expect(answerOf(each, { items: withRejectionDetails, postings, warnings })).toStrictEqual(each.want)
  })
})

test('the corpus has a case for every reason to refuse, and no two cases with the same name', () => {
  const statuses = new Set(corpus.flatMap((each) => each.want.items.map((item) => item.status)))
  // Only a cloud that was restored from a backup withholds tokens, and only a device can be refused by its cloud.
  const { POOL_IN_RECOVERY: _, DEVICE_REFUSED: __, ...shown } = REFUSAL_REASONS
  expect([...statuses].sort()).toEqual(['GRANTED', 'NOT_CHARGED', ...Object.keys(shown)].sort())
  expect(new Set(corpus.map((each) => each.name)).size).toBe(corpus.length)
})
