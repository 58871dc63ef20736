import { describe, expect, it } from 'vitest'
import { statusPage } from '../../../../src/agent/platform/status-http/page.ts'
import { type DeviceReportWire, USE_BINS, USE_BIN_MS } from '../../../../src/protocol/local/report.ts'
import { agentStatus } from '../../../cli/agent-status.ts'
import { HOSTILE, decision, reportWith } from './report-with.ts'

describe('the status page', () => {
  it('shows hostile names as text in every place', () => {
    const account = {
      actionName: HOSTILE,
      granted: '1',
      used: '0',
      burned: '0',
      refunded: '0',
      returned: '0',
      exhausted: false,
      unlimited: false,
      overdraft: '0',
    }
    const name = encodeURIComponent(HOSTILE)
    const problem = { subject: HOSTILE, code: HOSTILE, message: HOSTILE, remedy: HOSTILE, since: 1 }
    const page = statusPage(
      reportWith(
        {
          name: HOSTILE,
          accounts: [
            { ...account, account: `limit/i/${name}/${name}/${name}/0` },
            { ...account, account: `action/i/${name}/a` },
          ],
          policies: [{ ...agentStatus().policies[0]!, name: HOSTILE }],
          version: HOSTILE,
        },
        {
          decisions: [{ ...decision(1, HOSTILE, '0', HOSTILE, HOSTILE), version: HOSTILE, count: HOSTILE }],
          problems: [problem],
          refusals: [
            { correlationId: HOSTILE, at: 1, request: HOSTILE, code: HOSTILE, message: HOSTILE, remedy: HOSTILE },
          ],
          health: { level: 'ok', sentence: HOSTILE, steps: [HOSTILE, `\`${HOSTILE}\``] },
        },
      ),
    )
    expect(page.match(/<script/g)).toHaveLength(1)
    expect(page).not.toContain('<img')
    expect(page).not.toContain('\u202e')
    expect(page).not.toContain('\u0007')
    expect(page.split('&lt;script&gt;').length).toBeGreaterThan(10)
  })

  it('shows how long the grant is valid', () => {
    const grantOf = (remainingMs: number): string | undefined =>
      /<dt>Grant<\/dt>\s*<dd>([^<]*)/.exec(
        statusPage(reportWith({ grant: { term: 1, expiresAt: 1, remainingMs } })),
      )?.[1]
    expect(grantOf(0)).toBe('expired')
    expect(grantOf(1_500)).toBe('valid for another 1 second without the cloud')
  })

  it('shows whether rules are up to date, too old, or missing', () => {
    const rulesOf = (applied: number, newest: number, remainingMs: number): string | undefined => {
      const policies = [{ ...agentStatus().policies[0]!, applied, newest, remainingMs }]
      const grant = { term: 1, expiresAt: 1, remainingMs: 86_500_000 }
      return /<dt>Rules of Workshop<\/dt>\s*<dd>([^<]*)/.exec(statusPage(reportWith({ policies, grant })))?.[1]
    }
    expect(rulesOf(7, 7, 90_000_000)).toBe('revision 7, up to date')
    expect(rulesOf(7, 7, 86_400_000)).toBe('revision 7, up to date')
    expect(rulesOf(7, 7, 7_200_000)).toBe('revision 7, up to date, usable for another 2 hours without the cloud')
    expect(rulesOf(7, 8, 7_200_000)).toBe(
      'revision 7 applied, usable for another 2 hours without the cloud, 8 available',
    )
    expect(rulesOf(7, 7, 0)).toBe('revision 7, too old')
    expect(rulesOf(7, 8, 0)).toBe('revision 7 applied, too old, 8 available')
    expect(rulesOf(0, 0, 0)).toBe('none yet')
  })

  it('shows refusals, requested top-ups, undelivered entries and remaining tokens', () => {
    const page = statusPage(reportWith())
    for (const words of [
      'refused: Denied by rule of access',
      'revision 7 applied, 8 available',
      '3 of 12 entries',
      'LW-ANNUAL',
      '19.9 GiB free of 57.7 GiB',
      'the cloud has no more, up to 20 of the balance is overdraft',
    ]) {
      expect(page).toContain(words)
    }
  })

  it('names the instances of the rules and of the sessions, as far as they are known', () => {
    const [policy] = agentStatus().policies
    const instanceId = 'b1a0b7a4-6f36-4ef0-9b4e-1c55b9f7a0d2'
    const page = statusPage(
      reportWith({
        policies: [policy!, { ...policy!, instanceId, name: null }],
        sessions: [
          { instanceId: policy!.instanceId, state: 'OPEN', sessionId: null },
          { instanceId, state: 'CLOSED', sessionId: null },
        ],
      }),
    )
    const rows = [...page.matchAll(/<dt>((?:Rules|Session)[^<]*)</g)].map(([, label]) => label)
    expect(rows).toEqual(['Session of Workshop', 'Session', 'Rules of Workshop', 'Rules'])
  })

  it('shows the key of the device with its date, and the next key', () => {
    const { clock, key } = agentStatus()
    const since = clock.now - 3 * 86_400_000
    expect(statusPage(reportWith({ key: { ...key, since } }))).toContain(`<dd>${key.id}, for 3 days</dd>`)
    const [from, to] = ['a'.repeat(43), 'b'.repeat(43)]
    const page = statusPage(reportWith({ key: { id: from, since: null, next: to } }))
    expect(page).toContain(`<dd>${from}; next key: ${to}</dd>`)
  })

  describe('of use over time', () => {
    const NOW = agentStatus().clock.now
    const { account } = agentStatus().accounts[0]!
    const use = { binMs: USE_BIN_MS, until: NOW + 1, since: NOW - 86_400_000 }
    const at = (bins: Readonly<Record<number, bigint>>) =>
      Array.from({ length: USE_BINS }, (_, bin) => String(bins[bin] ?? 0n))

    it('draws a curve up to its peak, and says the same in words', () => {
      const charged = at({ 46: 1_000_000n, 47: 2_000_000n })
      const page = statusPage(reportWith({}, { use: { ...use, accounts: [{ account, charged }] } }))
      expect(page).toContain('aria-label="LW-ANNUAL: 3, at most 2 in 30 minutes, up to 30 minutes ago"')
      expect(page).toMatch(/class="curve" d="M0 20 V20\.0 H1 V20\.0 H2 .* V20\.0 H46 V10\.0 H47 V0\.0 H48 V20"/)
      expect(page).not.toContain('is known for the last')
    })

    it('draws the same curve for amounts that a floating-point number cannot represent', () => {
      const charged = at({ 0: 9_000_000_000_000_000_001n, 1: 4_500_000_000_000_000_001n })
      const page = statusPage(reportWith({}, { use: { ...use, accounts: [{ account, charged }] } }))
      expect(page).toMatch(/class="curve" d="M0 20 V0\.0 H1 V10\.0 H2 V20\.0 H3 /)
    })

    it('begins at the first known time', () => {
      const known = {
        ...use,
        since: NOW - 2 * USE_BIN_MS + 2,
        accounts: [{ account, charged: at({ 46: 4n, 47: 8n }) }],
      }
      const page = statusPage(reportWith({}, { use: known }))
      expect(page).toContain('class="curve" d="M46 20 V10.0 H47 V0.0 H48 V20"')
      const barely = { ...known, since: NOW, accounts: [{ account, charged: at({ 47: 8n }) }] }
      expect(statusPage(reportWith({}, { use: barely }))).toContain('class="curve" d="M47 20 V0.0 H48 V20"')
    })

    it('says where nothing was charged, and since when it knows', () => {
      const page = statusPage(reportWith({}, { use: { ...use, since: NOW - 3 * 3_600_000, accounts: [] } }))
      expect(page).not.toContain('<svg')
      expect(page).toContain('<span class="soft">nothing</span>')
      expect(page).toContain('Charges are known for the last 3 hours.')
    })
  })

  it('shows errors of the same kind once, and leaves their remedy to the problem above', () => {
    const refusal = { correlationId: 'c-1', at: 1, request: 'r', code: 'NOT_RECORDED', message: 'full', remedy: 'free' }
    const refusals = [refusal, { ...refusal, correlationId: 'c-2' }, { ...refusal, code: 'OVERLOADED' }]
    const alone = statusPage(reportWith({}, { refusals }))
    expect(alone.match(/What to do:/g)).toHaveLength(2)
    expect(alone).toContain('2 requests, the newest ')
    const problems = [{ subject: 'ledger', code: 'NOT_RECORDED', message: 'full', remedy: 'free', since: 1 }]
    expect(statusPage(reportWith({}, { refusals, problems })).match(/See the problem above/g)).toHaveLength(1)
  })

  it('shows the remedy of a problem once: in the steps at the top, or with the problem', () => {
    const low = { subject: 'tokens of LW-1', code: 'TOKENS_LOW', message: 'Few tokens are left.', since: 1 }
    const overdue = { subject: 'backup', code: 'BACKUP_OVERDUE', message: 'There is no backup.', since: 1 }
    const problems = [low, overdue].map((each) => ({ ...each, remedy: `mend ${each.code}` }))
    const page = statusPage(reportWith({ conditions: [low, overdue] }, { problems }))
    expect(page).toContain('<code>tallygate line-items set LW-1 --quantity TOTAL</code>')
    expect(page.match(/See the steps above\./g)).toHaveLength(1)
    expect(page).not.toContain('mend TOKENS_LOW')
    expect(page).toContain('mend BACKUP_OVERDUE')
  })

  it('numbers the steps of each way out on their own', () => {
    const health = {
      level: 'refusing',
      sentence: 'It was damaged.',
      steps: ['With `x`:', 'Stop', 'Without:', 'Enroll'],
    }
    const page = statusPage(reportWith({}, { health: health as DeviceReportWire['health'] })).replaceAll(
      /\s*\n\s*/g,
      '',
    )
    expect(page).toContain(
      '<p>With <code>x</code>:</p><ol class="steps"><li>Stop</li></ol><p>Without:</p><ol class="steps"><li>Enroll</li></ol>',
    )
  })

  it('shows no next step for an error without a remedy', () => {
    const refusal = { correlationId: 'c-1', at: 1, request: 'r', code: 'CONFLICT', message: 'count up', remedy: '' }
    const page = statusPage(reportWith({}, { refusals: [refusal] }))
    expect(page).toContain('<p>count up</p>')
    expect(page).not.toContain('What to do')
  })

  it('names the device, and shows the next steps with commands', () => {
    const page = statusPage(reportWith({ name: 'press-7', connected: false }))
    expect(page).toContain('<span data-part="device">press-7</span>')
    expect(page).toMatch(/<dt>Device id<\/dt>\s*<dd>0c1d8a1e-0000-4000-8000-000000000000<\/dd>/)
    expect(page).toContain('<li><code>tallygate doctor</code> shows where the connection to the cloud fails</li>')
    expect(statusPage(reportWith({ deviceId: null, name: null }))).toContain(
      '<span data-part="device">not enrolled</span>',
    )
  })

  it('takes less than 40 kB with 20 decisions', () => {
    const decisions = Array.from({ length: 20 }, (_, n) => decision(n + 1, 'GRANTED', '1'))
    expect(Buffer.byteLength(statusPage(reportWith({}, { decisions })))).toBeLessThan(40_000)
  })
})
