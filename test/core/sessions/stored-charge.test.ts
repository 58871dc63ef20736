import { expect, it } from 'vitest'
import { decimal } from '../../../src/core/pricing/amount.ts'
import type { IntervalCharge } from '../../../src/core/sessions/session.ts'
import { type StoredCharge, chargeOf, storedCharge } from '../../../src/core/sessions/stored-charge.ts'

it('a charge is the same after it was stored as JSON, also without its optional fields', () => {
  const charge: IntervalCharge = {
    from: 1_000,
    until: 61_000,
    items: [
      {
        item: {
          name: 'Press',
          version: '1.0',
          count: decimal('2.5'),
          variables: new Map([['width', decimal('0.125')]]),
          metaData: '{"order":7}',
        },
        shares: [
          { lineItemId: 'A', accounts: ['line/i/A/0', 'action/i/A/b'], charged: 2n ** 60n, rate: decimal('0.1') },
          { lineItemId: 'B', accounts: ['line/i/B/0'], charged: 1n },
        ],
      },
      { item: { name: 'Cut', version: '', count: decimal('1'), metaData: null }, shares: [] },
    ],
  }
  expect(chargeOf(JSON.parse(JSON.stringify(storedCharge(charge))) as StoredCharge)).toEqual(charge)
})
