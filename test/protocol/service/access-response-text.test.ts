import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import type { AccessRequest, ItemOutcome } from '../../../src/core/rules/decision.ts'
import { accessResponse } from '../../../src/protocol/service/access-request.ts'
import { accessResponseText } from '../../../src/protocol/service/access-response-text.ts'
import { ITEM_STATUS } from '../../../src/protocol/service/status.ts'

const text = fc.string({ unit: fc.oneof(fc.constantFrom('a', '"', '\\', '\n', 'é', '\ud800'), fc.string()) })
const number = fc.record({ digits: fc.bigInt({ min: 0n, max: 10n ** 30n }), scale: fc.nat(30) })
const micro = fc.bigInt({ min: 0n, max: 2n ** 63n - 1n })

const { GRANTED, NOT_CHARGED, ...refusals } = ITEM_STATUS

const outcome: fc.Arbitrary<ItemOutcome> = fc.oneof(
  fc.record({
    outcome: fc.constant('GRANTED' as const),
    total: micro,
    shares: fc.array(
      fc.record({ lineItemId: text, rate: number, actionId: fc.option(text, { nil: null }), charged: micro }),
    ),
  }),
  fc.constant({ outcome: 'NOT_CHARGED' as const }),
  fc.record({
    outcome: fc.constant('REFUSED' as const),
    reason: fc.constantFrom(...(Object.keys(refusals) as Extract<ItemOutcome, { reason: unknown }>['reason'][])),
    rejectionDetails: fc.constant([]),
  }),
)

const request: fc.Arbitrary<{ request: AccessRequest; items: readonly ItemOutcome[] }> = fc
  .record({
    requester: fc.record({ type: text, value: text, dictionary: fc.constant({}) }),
    both: fc.array(
      fc.tuple(fc.record({ name: text, version: fc.oneof(fc.constant(''), text), count: number }), outcome),
    ),
  })
  .map(({ requester, both }) => ({
    request: { requester, items: both.map(([asked]) => asked) },
    items: both.map(([, decided]) => decided),
  }))

describe('the text of an answer to an access request', () => {
  it('is to the letter what JSON.stringify makes of the answer', () => {
    fc.assert(
      fc.property(
        fc.constantFrom('v1.0' as const, 'v1.1' as const),
        fc.uuid(),
        request,
        (version, id, { request, items }) => {
          const decision = { items }
          const expected = JSON.stringify(accessResponse(version, id, request, decision))
          expect(accessResponseText(version, id, request, decision)).toBe(expected)
        },
      ),
      { numRuns: 500 },
    )
  })

  it('has the status of every outcome', () => {
    expect([GRANTED.description, NOT_CHARGED.description]).not.toContain(undefined)
    expect(Object.keys(refusals).length).toBeGreaterThan(5)
  })
})
