// States of a device that the status page is looked at in: by tests in a browser and for the screenshots.
import { type DeviceReportWire, USE_BINS, USE_BIN_MS } from '../../../../src/protocol/local/report.ts'
import { ERRORS } from '../../../../src/protocol/errors.ts'
import { agentStatus, instanceId } from '../../../cli/agent-status.ts'
import { HOSTILE, decision, reportWith } from './report-with.ts'

const NOW = agentStatus().clock.now
const account = (id: string, granted: number, used: number, changes = {}) => ({
  account: id,
  actionName: null,
  granted: String(granted * 1_000_000),
  used: String(used * 1_000_000),
  burned: '0',
  refunded: '0',
  returned: '0',
  exhausted: false,
  unlimited: false,
  overdraft: '0',
  ...changes,
})
const accounts = [
  account(`line/${instanceId}/LW-ANNUAL-CONTRACT/0`, 150, 62.5),
  account(`line/${instanceId}/LW-FURNACE/3`, 600, 570, { overdraft: '20000000' }),
  account(`action/${instanceId}/LW-ANNUAL-CONTRACT/6b0f3f7e-30a5-4d2f-8d2f-1f1a3c4b5d6e`, 40, 12, {
    actionName: 'Design budget',
  }),
  account(`line/${instanceId}/LW-METERED/0`, 0, 0, { unlimited: true }),
]
/** A shift: charges by half hours, in whole tokens. */
const charged = (perBin: (bin: number) => number): string[] =>
  Array.from({ length: USE_BINS }, (_, bin) => String(Math.round(perBin(bin) * 1_000_000)))
const use = {
  binMs: USE_BIN_MS,
  until: NOW + 600_000,
  since: NOW - 86_400_000,
  accounts: [
    {
      account: accounts[0]!.account,
      charged: charged((bin) => (bin < 18 ? 0 : 2 + Math.round(6 * Math.sin(bin / 3)) / 4)),
    },
    { account: accounts[1]!.account, charged: charged((bin) => (bin % 12 < 3 ? 40 : 0)) },
    { account: accounts[2]!.account, charged: charged((bin) => (bin === 30 ? 9.5 : bin === 46 ? 2.5 : 0)) },
  ],
}
/** Of an agent that was started five hours ago. */
const sinceNoon = {
  ...use,
  since: NOW - 5 * 3_600_000,
  accounts: use.accounts.map(({ account, charged }) => {
    return { account, charged: charged.map((amount, bin) => (bin < USE_BINS - 10 ? '0' : amount)) }
  }),
}
const decisions = [
  decision(12, 'GRANTED', '2500000', 'LaserCut', 'anna'),
  decision(11, 'DENIED_BY_RULE', '0', 'Furnace', 'tom'),
  decision(10, 'GRANTED', '12000000', 'Furnace', 'kiln-1'),
  decision(9, 'GRANT_EXHAUSTED', '0', 'LaserCut', 'lisa'),
]
const problem = (subject: string, code: string, message: string, remedy: string, minutes: number) => {
  return { subject, code, message, remedy, since: NOW - minutes * 60_000 }
}
const away = problem(
  'cloud',
  'CLOUD_UNREACHABLE',
  'The cloud at cloud.example does not respond (ECONNREFUSED).',
  ERRORS.CLOUD_UNREACHABLE.remedy,
  95,
)
const full = problem('ledger', 'NOT_RECORDED', 'the disk is full', ERRORS.NOT_RECORDED.remedy, 3)
const stale = {
  correlationId: '5c8ec4fd-f17f-4657-bf09-74a97ddc9f99',
  at: NOW - 41_000,
  request: `POST v1.1 access-request of ${instanceId}`,
  code: 'POLICY_STALE',
  message: 'revision 7 was last confirmed too long ago',
  remedy: ERRORS.POLICY_STALE.remedy,
}
const isAway = {
  connected: false,
  push: 'DISCONNECTED' as const,
  lastContactAt: NOW - 95 * 60_000,
  backlog: 412,
  lastEntry: 2_117,
}
const conditionOf = ({ subject, code, message, since }: typeof away) => ({ subject, code, message, since })

const fresh = {
  ...use,
  since: NOW - 60_000,
  accounts: [{ account: accounts[0]!.account, charged: charged((bin) => (bin === USE_BINS - 1 ? 2.5 : 0)) }],
}
const exhausted = accounts.map((each, at) => ({ ...each, exhausted: at === 1 }))
const dry = accounts.slice(0, 2).map((each) => ({ ...each, used: each.granted, exhausted: true, overdraft: '0' }))
/** A device whose status and problems name one condition. */
function withProblem(
  found: typeof away,
  changes: Parameters<typeof reportWith>[0] = {},
  more: Parameters<typeof reportWith>[1] = {},
): DeviceReportWire {
  const status = { accounts, conditions: [conditionOf(found)], ...changes }
  return reportWith(status, { decisions, use, problems: [found], ...more })
}
const refused = Array.from({ length: 5 }, (_, n) => {
  return { ...stale, correlationId: `${stale.correlationId.slice(0, -1)}${n}`, code: full.code, message: full.message }
})

type Scene =
  | 'working'
  | 'fresh'
  | 'offline'
  | 'low'
  | 'used-up'
  | 'locked'
  | 'revoked'
  | 'clock'
  | 'full'
  | 'damaged'
  | 'refusing'
  | 'empty'
  | 'hostile'

export const SCENES: Readonly<Record<Scene, DeviceReportWire>> = {
  fresh: reportWith({ accounts: accounts.slice(0, 1) }, { decisions: decisions.slice(0, 1), use: fresh }),
  low: withProblem(
    problem(
      'tokens of LW-FURNACE',
      'TOKENS_LOW',
      'The line item LW-FURNACE has 30 tokens left on this device, enough for about 3 hours at the current rate. Its pool in the cloud has no more.',
      ERRORS.TOKENS_LOW.remedy,
      40,
    ),
    { accounts: exhausted },
  ),
  'used-up': withProblem(
    problem(
      'tokens of LW-FURNACE',
      'TOKENS_USED_UP',
      'The tokens of the line item LW-FURNACE are used up, and its pool in the cloud has no more.',
      ERRORS.TOKENS_USED_UP.remedy,
      8,
    ),
    { accounts: dry },
  ),
  locked: reportWith({ accounts, suspension: { state: 'LOCKED', since: NOW - 3_600_000 } }, { decisions, use }),
  revoked: withProblem(
    problem('revocation', 'DEVICE_REVOKED', 'The key of this device was revoked.', ERRORS.DEVICE_REVOKED.remedy, 12),
    { accounts: accounts.slice(0, 1) },
  ),
  clock: withProblem(
    problem(
      'clock',
      'CLOCK_WRONG',
      'The clock of this machine is 90 days ahead of the time signed by the cloud.',
      ERRORS.CLOCK_WRONG.remedy,
      0,
    ),
  ),
  full: withProblem(full, {}, { refusals: refused }),
  damaged: withProblem(
    problem(
      'damaged ledger',
      'LEDGER_SALVAGED',
      'The ledger was damaged and is kept as journal.db.damaged-2027-01-15: 0 undelivered entries were salvaged, the number of lost entries is unknown. Found: file is not a database.',
      ERRORS.LEDGER_SALVAGED.remedy,
      2,
    ),
    { deviceId: null, name: null, accounts: [], policies: [], grant: null, connected: false, lastContactAt: null },
    { decisions: [], use: { ...use, accounts: [] } },
  ),
  working: reportWith(
    {
      accounts,
      policies: [{ instanceId, name: 'Workshop', applied: 8, newest: 8, engine: 1, remainingMs: 604_800_000 }],
    },
    { decisions, use },
  ),
  offline: reportWith(
    { accounts, ...isAway, conditions: [conditionOf(away)] },
    { decisions, problems: [away], use: sinceNoon },
  ),
  refusing: reportWith(
    {
      accounts,
      ...isAway,
      clock: { now: NOW, earliest: NOW, latest: null },
      conditions: [away, full].map(conditionOf),
    },
    { decisions, use, problems: [away, full], refusals: [stale], clock: { health: 'unbounded', widthMs: null } },
  ),
  empty: reportWith(
    {
      deviceId: null,
      name: null,
      accounts: [],
      policies: [],
      grant: null,
      connected: false,
      lastContactAt: null,
      lastSyncAt: null,
    },
    { decisions: [] },
  ),
  hostile: reportWith(
    { accounts: [account(`line/${instanceId}/${encodeURIComponent(HOSTILE)}/0`, 1, 1)] },
    {
      decisions: [
        decision(12, 'GRANTED', '1', HOSTILE, HOSTILE),
        decision(11, 'GRANTED', '1', 'x'.repeat(200), 'y'.repeat(200)),
      ],
    },
  ),
}
