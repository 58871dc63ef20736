// What can be requested on the device, and what is said after a request for something else.
import { describe, expect, it } from 'vitest'
import { adviceAfter, currentOffers } from '../../../src/agent/access/offers.ts'
import type { PolicyInForce } from '../../../src/agent/policy/active-policies.ts'
import { parseDecimal } from '../../../src/core/pricing/amount.ts'
import { decide } from '../../../src/core/rules/decide.ts'
import { exactly } from '../../../src/core/rules/decision.ts'
import type { PolicyDocumentWire } from '../../../src/protocol/edge/policy-document.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { offers } from '../../../src/protocol/local/offers.ts'
import { policyInForce } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { policyWith } from '../sync/policies.ts'

const NOW = exactly(1_000)

type Items = PolicyDocumentWire['rateTables'][number]['items']

function policyFor(items: Items): Promise<PolicyInForce> {
  const [lineItem] = policyWith(1).lineItems
  const open = { ...lineItem!, startsAt: 0, endsAt: 10_000 }
  return policyInForce(7, {
    lineItems: [
      { ...open, id: 'SECOND', endsAt: 20_000 },
      { ...open, id: 'FIRST' },
      { ...open, id: 'ENDED', endsAt: 500, rateTableSeries: 'old' },
    ],
    rateTables: [
      { series: '', version: '0', effectiveFrom: 0, items: [{ name: 'Superseded', version: '', rate: '1' }] },
      { series: '', version: '1', effectiveFrom: 1, items },
      { series: '', version: '2', effectiveFrom: 2_000, items: [{ name: 'Later', version: '', rate: '1' }] },
      { series: 'old', version: '1', effectiveFrom: 1, items: [{ name: 'Ended', version: '', rate: '1' }] },
      { series: 'unused', version: '1', effectiveFrom: 1, items: [{ name: 'Unused', version: '', rate: '1' }] },
    ],
  })
}

/** @param served instances of the device */
function device(policy: PolicyInForce | undefined, served = [INSTANCE]): unknown {
  const policies = { get: () => policy, suspension: null, isStale: () => false }
  const status = { deviceId: 'device', policies: served.map((instanceId) => ({ instanceId })) }
  const found = currentOffers({ policies, link: { status: () => status } }, NOW)
  return offers.parse(JSON.parse(JSON.stringify(found)))
}

describe('the offers', () => {
  it('are the items in effect that usable line items pay for, with the rate of each', async () => {
    const policy = await policyFor([
      { name: 'LaserEngrave', version: '', formula: '0.1 * minutes' },
      { name: 'LaserCut', version: '2.0', rate: '0.9' },
      { name: 'LaserCut', version: '1.0', rate: '0.85' },
    ])
    const paidBy = (price: object) => ['FIRST', 'SECOND'].map((activationId) => ({ activationId, ...price }))
    expect(device(policy)).toEqual({
      instances: [
        {
          instanceId: INSTANCE,
          name: 'Workshop',
          policyRevision: 7,
          items: [
            { item: 'LaserCut', version: '1.0', lineItems: paidBy({ rate: 0.85 }) },
            { item: 'LaserCut', version: '2.0', lineItems: paidBy({ rate: 0.9 }) },
            { item: 'LaserEngrave', lineItems: paidBy({ formula: '0.1 * minutes' }) },
          ],
        },
      ],
    })
  })

  it('are refused with the reason where there are no rules', () => {
    const codeOf = (act: () => unknown): string | undefined => {
      try {
        act()
      } catch (error) {
        return error instanceof CodedError ? error.code : String(error)
      }
      return undefined
    }
    expect(codeOf(() => device(undefined))).toBe('POLICY_MISSING')
    expect(codeOf(() => device(undefined, []))).toBe('NOT_ENROLLED')
  })
})

describe('the advice', async () => {
  const { compiled } = await policyFor([
    { name: 'LaserCut', version: '1.0', rate: '1' },
    { name: 'LaserCut', version: '2.0', rate: '1' },
    { name: 'Bohrung Ø8', version: '', rate: '1' },
    { name: 'Pair', version: '', rate: '1' },
    { name: 'Pair', version: '1', rate: '1' },
  ])
  const view = compiled.at(NOW)
  const adviceFor = (...names: readonly string[]): string | undefined => {
    const items = names.map((name) => ({ name, version: '7', count: parseDecimal(1)! }))
    const request = { requester: { type: 'user', value: 'anna', dictionary: {} }, items }
    const decision = decide(view, request, () => ({ left: 'UNLIMITED', shortage: 'POOL' }), 'BEST_EFFORT')
    return adviceAfter(view, request, decision)
  }

  it('names the versions of an item that was requested with another one', () => {
    expect(adviceFor('LaserCut')).toBe('LaserCut exists as version 1.0, 2.0')
    expect(adviceFor('Pair')).toBe('Pair exists as version 1 and without a version')
  })

  it('finds the name in any case, and escapes it for a header', () => {
    expect(adviceFor('lasercut')).toBe('LaserCut exists as version 1.0, 2.0')
    expect(adviceFor('bohrung ø8')).toBe('Bohrung \\u00d88 exists without a version')
  })

  it('is short, and missing where nothing similar exists', () => {
    expect(adviceFor('Unknown')).toBeUndefined()
    expect(adviceFor('LaserCut', 'LASERCUT', 'laserCut', 'lAserCut')?.split('; ')).toHaveLength(3)
  })
})
