// Policy documents of the tests: one line item that anybody may use, as small as a policy can be.
import type { PolicyDocumentWire } from '../../../src/protocol/edge/policy-document.ts'
import { BEGIN } from './fake-time.ts'
import { INSTANCE } from './fake-cloud.ts'

type Unsigned = Omit<PolicyDocumentWire, 'trustedKeys'>

export function policyWith(revision: number, changes: Partial<Unsigned> = {}): Unsigned {
  return {
    format: 1,
    instanceId: INSTANCE,
    instanceName: 'Workshop',
    revision,
    engine: 1,
    oldestEngine: 1,
    issuedAt: BEGIN,
    usableForMs: 365 * 86_400_000,
    grantHorizonMs: 86_400_000,
    timezoneTolerant: false,
    undecidedClock: 'allow',
    lineItems: [
      {
        id: 'line-1',
        state: 'DEPLOYED',
        elastic: true,
        rateTableSeries: '',
        startsAt: BEGIN - 86_400_000,
        endsAt: BEGIN + 365 * 86_400_000,
        quantity: '1000000000',
        overdraft: '0',
        periods: [{ index: 0, from: null, until: null }],
        actions: [],
        consumptionLimit: null,
      },
    ],
    conditions: [],
    rateTables: [
      { series: '', version: '1', effectiveFrom: BEGIN - 1, items: [{ name: 'print', version: '', rate: '1' }] },
    ],
    ...changes,
  }
}

/** A line item with an action that refers to a condition. */
export function withAction(revision: number, conditionId: string): Unsigned {
  const plain = policyWith(revision)
  return {
    ...plain,
    lineItems: plain.lineItems.map((item) => ({
      ...item,
      actions: [
        {
          id: '6b0f3f7e-30a5-4d2f-8d2f-1f1a3c4b5d6e',
          name: null,
          conditionId,
          effect: 'ALLOW' as const,
          allocation: '1000000',
        },
      ],
    })),
  }
}
