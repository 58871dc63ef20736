import { describe, expect, it } from 'vitest'
import type { LineItem, Policy } from '../../src/core/rules/policy.ts'
import { policyDocument, policyOf, policyToWire } from '../../src/protocol/edge/policy-document.ts'

const lineItem = (id: string): LineItem => ({
  id,
  state: 'DEPLOYED',
  elastic: true,
  rateTableSeries: 'A',
  startsAt: 1,
  endsAt: 2,
  quantity: 3_000_000n,
  overdraft: 'UNLIMITED',
  periods: [{ index: 0, from: null, until: null }],
  actions: [],
  consumptionLimit: { limit: 5n, periods: [{ index: 0, from: null, until: 9 }] },
})

const policy = (lineItems: readonly LineItem[]): Policy => ({
  instanceId: '64d2028c-ae87-4069-a624-66089d957ef9',
  revision: 7,
  lineItems,
  conditions: [
    {
      id: '0b0f6b0e-7b0a-4d3b-9d6a-0d4a3b2c1d0e',
      name: null,
      operator: 'NOT',
      condition: { operator: 'IN', property: 'p', values: ['v'] },
    },
  ],
  rateTables: [
    {
      series: 'A',
      version: '1',
      effectiveFrom: 0,
      items: [
        { name: 'I', version: '', rate: { digits: 25n, scale: 1 } },
        { name: 'J', version: '', formula: 'price * 2' },
      ],
    },
  ],
  timezoneTolerant: true,
  undecidedClock: 'allow',
})

const terms = {
  instanceName: 'Workshop',
  issuedAt: 4,
  usableForMs: 5,
  grantHorizonMs: 6,
  trustedKeys: [{ kty: 'OKP' as const, crv: 'Ed25519' as const, x: 'AAAA' }],
}

describe('the policy document', () => {
  it('carries a policy over the wire unchanged', () => {
    const sent = policy([lineItem('L1'), lineItem('L2')])
    const text = JSON.stringify(policyToWire(sent, terms))
    expect(policyOf(policyDocument.parse(JSON.parse(text)))).toEqual(sent)
  })

  it('is refused when two line items have the same id, since one account would be asked twice', () => {
    const parsed = policyDocument.safeParse(policyToWire(policy([lineItem('L1'), lineItem('L1')]), terms))
    expect(parsed.error?.issues[0]?.message).toBe('two line items have the same id')
  })

  it('is refused when a formula in it is invalid', () => {
    const wire = policyToWire(policy([]), terms)
    const [table] = wire.rateTables
    const bad = { ...wire, rateTables: [{ ...table, items: [{ name: 'J', version: '', formula: 'price *' }] }] }
    expect(policyDocument.safeParse(bad).success).toBe(false)
  })

  it('is refused when it has a field that the device does not know', () => {
    const wire = { ...policyToWire(policy([]), terms), later: true }
    expect(policyDocument.safeParse(wire).success).toBe(false)
  })
})
