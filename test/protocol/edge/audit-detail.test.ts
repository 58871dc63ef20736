import { expect, it } from 'vitest'
import { detailInWords } from '../../../src/protocol/edge/audit-detail.ts'
import { INSTANT_MAX } from '../../../src/protocol/wire.ts'

it.each([
  [{ tokens: '2.5' }, 'tokens: 2.5'],
  [{ series: '', version: '2', effectiveFrom: 1_000 }, 'version: 2; effective from: 1970-01-01T00:00:01Z'],
  [{ start: 0, end: INSTANT_MAX, quantity: 5, given: { quantity: '5' } }, 'quantity: 5'],
  [{ attributes: { elastic: false, rateTableSeries: 'a b' } }, 'attributes: elastic=false rateTableSeries=a b'],
  [{ set: { site: 'bonn', line: '3' }, remove: ['a', 'b'] }, 'set: site=bonn line=3; remove: a, b'],
  [{ name: null, roles: [], labels: {}, count: 0 }, 'count: 0'],
  [{ exposure: [{ account: 'x', atRisk: '1' }, { account: 'y' }] }, 'exposure: account=x atRisk=1, account=y'],
  [{ 'timezone.tolerant': 'true' }, 'timezone.tolerant: true'],
])('shows %o in words', (detail, text) => {
  expect(detailInWords(JSON.stringify(detail))).toBe(text)
})
