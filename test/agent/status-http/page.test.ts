import { describe, expect, it } from 'vitest'
import { statusPage } from '../../../src/agent/adapters/status-http/page.ts'
import { HOSTILE, decision, reportWith } from './report-with.ts'

describe('the status page', () => {
  it('shows hostile names as text, in every place where a name can stand', () => {
    const account = {
      granted: '1',
      used: '0',
      burned: '0',
      refunded: '0',
      returned: '0',
      exhausted: false,
      unlimited: false,
    }
    const name = encodeURIComponent(HOSTILE)
    const problem = { subject: HOSTILE, code: HOSTILE, message: HOSTILE, remedy: HOSTILE, since: 1 }
    const page = statusPage(
      reportWith(
        { accounts: [{ ...account, account: `limit/i/${name}/${name}/${name}/0` }], version: HOSTILE },
        {
          decisions: [{ ...decision(1, HOSTILE, '0', HOSTILE, HOSTILE), version: HOSTILE, count: HOSTILE }],
          problems: [problem],
          refusals: [
            { correlationId: HOSTILE, at: 1, request: HOSTILE, code: HOSTILE, message: HOSTILE, remedy: HOSTILE },
          ],
          verdict: { level: 'ok', sentence: HOSTILE },
        },
      ),
    )
    expect(page.match(/<script/g)).toHaveLength(1)
    expect(page).not.toContain('<img')
    expect(page).not.toContain('\u202e')
    expect(page).not.toContain('\u0007')
    expect(page.split('&lt;script&gt;').length).toBeGreaterThan(10)
  })

  it('says what is refused, wanted, unsent and left', () => {
    const page = statusPage(reportWith())
    for (const words of [
      'refused: Denied by rule of access',
      'revision 7 applied, 8 wanted',
      '3 of 12 entries',
      'LW-ANNUAL',
      'aria-label="LW-ANNUAL: 20 percent used"',
      '19.9 GiB free of 57.7 GiB',
    ]) {
      expect(page).toContain(words)
    }
  })

  it('stays small', () => {
    const decisions = Array.from({ length: 20 }, (_, n) => decision(n + 1, 'GRANTED', '1'))
    expect(Buffer.byteLength(statusPage(reportWith({}, { decisions })))).toBeLessThan(40_000)
  })
})
