import { describe, expect, it } from 'vitest'
import { clockHealth, cloudInWords, healthStatusOf, offlineMs } from '../../../src/agent/diagnostics/health-status.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import type { AgentStatusWire } from '../../../src/protocol/local/status.ts'
import { agentStatus } from '../../cli/agent-status.ts'

const NO_GRANT_LEFT = { term: 4, expiresAt: 1, remainingMs: 0 }
const [held] = agentStatus().accounts
const dry = [{ ...held!, used: held!.granted, refunded: '0' }]
const heldBack = (state: 'LOCKED' | 'TERMINATED') => ({ state, since: 1_800_000_000_000 })
const condition = (subject: string, code = 'CLOUD_UNREACHABLE', message = 'it is away') => [
  { subject, code, message, since: 1 },
]
const stale = condition('rules of Workshop', 'POLICY_STALE', 'They were.')
const { policies } = agentStatus()
const old = { ...policies[0]!, remainingMs: 7_200_000 }
const revoked = [{ subject: 'revocation', code: 'DEVICE_REVOKED', message: 'it was', since: 1 }]
const unknown = condition('enrollment', 'DEVICE_UNKNOWN', 'The cloud does not know it.')
const ENDED = { fenced: true, conditions: condition('attach', 'DEVICE_TERMINATED', 'The service was ended.') }

describe('the health status', () => {
  const cases: [string, Partial<AgentStatusWire>, 'ok' | 'attention' | 'refusing', RegExp][] = [
    ['a device in order', {}, 'ok', /working: connected, with 120 tokens/],
    ['one without limit', { accounts: [{ ...held!, unlimited: true }] }, 'ok', /with unlimited tokens/],
    [
      'one without limit of a line item',
      { accounts: [held!, { ...held!, unlimited: true }] },
      'ok',
      /with 120 tokens and LW-ANNUAL without limit\.$/,
    ],
    ['one that is not enrolled', { deviceId: null }, 'refusing', /not enrolled/],
    [
      'one whose token was refused',
      { deviceId: null, conditions: condition('enrollment', 'ENROLLMENT_REFUSED', 'The token in /t was used.') },
      'refusing',
      /grants nothing\. The token in \/t was used\.$/,
    ],
    [
      'one that is locked as a whole',
      { suspension: heldBack('LOCKED') },
      'refusing',
      /An administrator has locked this device, at 2027-/,
    ],
    [
      'one whose service was ended, and that the cloud does not know',
      { suspension: heldBack('TERMINATED'), fenced: true, conditions: unknown },
      'refusing',
      /^The cloud does not know it\. This device refuses every request\.$/,
    ],
    [
      'one whose service was ended',
      { suspension: heldBack('TERMINATED'), fenced: true },
      'refusing',
      /ended the service .* at 2027-/,
    ],
    ['one whose ledger is full', { conditions: condition('ledger') }, 'refusing', /cannot record/],
    ['one that is fenced', { fenced: true }, 'refusing', /stopped this device/],
    ['one that is fenced, and whose service was ended', ENDED, 'refusing', /^The service was ended\. It refuses every/],
    [
      'one whose service was ended before its first attach',
      { ...ENDED, fenced: false, epoch: 0 },
      'refusing',
      /^The service was ended\. It refuses every/,
    ],
    [
      'one that is fenced, and whose key was revoked',
      { fenced: true, conditions: revoked },
      'refusing',
      /^The key of this device was revoked: it refuses every request\.$/,
    ],
    ['one without rules', { policies: [] }, 'refusing', /no rules/],
    [
      'one whose rules are too old',
      { connected: false, conditions: [...condition('cloud'), ...stale] },
      'refusing',
      /^The rules of this device are too old: it refuses every request/,
    ],
    [
      'one whose rules are too old, and whose key was revoked',
      { conditions: [...revoked, ...stale] },
      'refusing',
      /^The key of this device was revoked: it refuses every request\.$/,
    ],
    [
      'one of whose rules some are too old',
      { connected: false, conditions: stale, policies: [...policies, ...policies] },
      'attention',
      /offline and continues to decide/,
    ],
    ['one that is not attached', { epoch: 0 }, 'refusing', /is not attached to the cloud.* until it has reached/],
    [
      'one that is offline',
      { connected: false },
      'attention',
      /offline and continues to decide, with 120 tokens.* 24 hours/,
    ],
    ['one that is offline and dry', { connected: false, accounts: dry }, 'refusing', /used up its tokens/],
    ['one that is offline with an expired grant', { connected: false, grant: NO_GRANT_LEFT }, 'refusing', /expired/],
    ['one that is online with an expired grant', { grant: NO_GRANT_LEFT }, 'attention', /asks the cloud for another/],
    ['one that never had a grant, offline', { connected: false, grant: null }, 'refusing', /no grant/],
    ['one that is dry, online', { accounts: dry }, 'attention', /has no tokens: it asks/],
    [
      'one that is dry in the cloud too',
      { accounts: dry, conditions: condition('tokens of A', 'TOKENS_USED_UP') },
      'refusing',
      /used up, in the cloud too/,
    ],
    [
      'one that runs low',
      { conditions: condition('tokens of A', 'TOKENS_LOW', 'A runs low.') },
      'attention',
      /^A runs low.$/,
    ],
    ['one whose key was revoked', { conditions: revoked }, 'attention', /key .* was revoked: .*120 tokens.* 24 hours/],
    [
      'one offline with rules that end first',
      { connected: false, policies: [old] },
      'attention',
      /for another 2 hours\.$/,
    ],
    [
      'one whose key was revoked, with rules that end first',
      { conditions: revoked, policies: [old] },
      'attention',
      /120 tokens for another 2 hours\.$/,
    ],
    ['one whose key was revoked, dry', { conditions: revoked, accounts: dry }, 'refusing', /revoked.* refuses every/],
    ['one whose key was revoked, at its end', { conditions: revoked, grant: NO_GRANT_LEFT }, 'refusing', /revoked/],
    [
      'one whose key the cloud does not know',
      { conditions: condition('sync', 'TOKEN_INVALID') },
      'attention',
      /key .* is not known to the cloud: it delivers no usage.*120 tokens.* 24 hours/,
    ],
    [
      'one with an old key, dry',
      { conditions: condition('sync', 'DEVICE_KEY_REPLACED'), accounts: dry },
      'refusing',
      /was replaced by another one.* refuses every/,
    ],
    [
      'one with a problem that ends with a question',
      { conditions: condition('settings', 'CONFIG_NOT_RELOADED', 'did you mean status.port?') },
      'attention',
      /: did you mean status\.port\?$/,
    ],
    ['one with a problem', { conditions: condition('sync') }, 'attention', /working, with a problem: it is away\.$/],
    [
      'one with several problems',
      { conditions: [...condition('sync'), ...condition('disk')] },
      'attention',
      /with 2 problems\. The first: it is away\.$/,
    ],
    [
      'one whose session is locked',
      { sessions: [{ instanceId: agentStatus().instanceIds[0]!, state: 'LOCKED', sessionId: 's' }] },
      'attention',
      /locked/,
    ],
  ]
  it.each(cases)('has level and sentence of %s', (_name, changes, level, sentence) => {
    const health = healthStatusOf(agentStatus(changes))
    expect(health.level).toBe(level)
    expect(health.sentence).toMatch(sentence)
    if (level !== 'ok') expect(health.steps.join(' ')).toMatch(/`(?:sudo|tallygate|df) /)
  })
})

describe('the next steps', () => {
  const cases: [string, Partial<AgentStatusWire>, RegExp][] = [
    ['not enrolled', { deviceId: null }, /\/etc\/tallygate\/enrollment-token.*enrollment\.token_file/],
    [
      'not enrolled and offline',
      { deviceId: null, conditions: condition('enrollment', 'CLOUD_UNREACHABLE') },
      /^Connect this device to the network of the cloud/,
    ],
    ['damaged', { deviceId: null, conditions: condition('damaged ledger', 'LEDGER_SALVAGED') }, /tallygate restore/],
    ['with old rules', { connected: false, conditions: stale }, /^`tallygate doctor`/],
    [
      'with old rules, and too old for newer ones',
      { conditions: [...condition('policy 64d2028c-ae87-4069-a624-66089d957ef9', 'AGENT_ENGINE_OLD'), ...stale] },
      /^Upgrade the agent\./,
    ],
    ['locked', { suspension: heldBack('LOCKED') }, /`tallygate devices unlock press-7`/],
    [
      'locked, with an odd name',
      { suspension: heldBack('LOCKED'), name: 'a b' },
      /`tallygate devices unlock 0c1d8a1e-/,
    ],
    ['full', { conditions: condition('ledger', 'NOT_RECORDED', 'the disk is full') }, /Free some space/],
    ['offline', { connected: false }, /`tallygate doctor`/],
    ['revoked', { conditions: revoked }, /`tallygate audit list --device press-7`/],
    [
      'low, of an instance and with an odd name',
      {
        conditions: condition(`tokens of 5 cm's`, 'TOKENS_LOW'),
        accounts: [{ ...held!, account: lineAccount('0c1d8a1e-7b0f-4d55-9a38-0d9d7d6f2c11', `5 cm's`, 0) }],
      },
      /`tallygate line-items set '5 cm'\\''s' --quantity TOTAL --instance 0c1d8a1e-7b0f-4d55-9a38-0d9d7d6f2c11`/,
    ],
    [
      'terminated, and that the cloud does not know',
      { suspension: heldBack('TERMINATED'), conditions: unknown },
      /wrong cloud.*\n.*systemctl stop.*\n.*rename the directory.*\nEnroll it as a new device:\n/,
    ],
    ['fenced and terminated', ENDED, /enroll it again:\n.*enrollment-token/],
    ['fenced', { fenced: true }, /`tallygate doctor`/],
    [
      'not enrolled, behind a proxy that responds in place of the cloud',
      { deviceId: null, conditions: condition('enrollment', 'ANSWER_UNEXPECTED') },
      /^Connect this device to the network of the cloud\./,
    ],
    [
      'fenced, and must wait before it attaches',
      { fenced: true, conditions: condition('attach', 'ATTACH_TOO_OFTEN') },
      /^Look for a second machine with the same state/,
    ],
    ['fenced and revoked', { fenced: true, conditions: revoked }, /shows who revoked it/],
    ['low', { conditions: condition('tokens of LW-1', 'TOKENS_LOW') }, /`tallygate line-items set LW-1 --quantity/],
    ['clock', { conditions: condition('clock', 'CLOCK_WRONG') }, /timedatectl/],
  ]
  it.each(cases)('of one that is %s', (_name, changes, step) => {
    expect(healthStatusOf(agentStatus(changes)).steps.join('\n')).toMatch(step)
  })
  it('are empty for a device without problems', () => {
    expect(healthStatusOf(agentStatus()).steps).toEqual([])
  })
})

it('does not call a damaged ledger an enrollment that is missing, and names a full disk', () => {
  const damaged = { deviceId: null, conditions: condition('damaged ledger', 'LEDGER_SALVAGED') }
  expect(healthStatusOf(agentStatus(damaged)).sentence).toMatch(/ledger .* was damaged/)
  const full = { conditions: condition('ledger', 'NOT_RECORDED', 'journal.db: database or disk is full') }
  expect(healthStatusOf(agentStatus(full)).sentence).toMatch(/disk of this device is full/)
})

it('can decide until the grant or usable rules end, whichever is first', () => {
  const { grant } = agentStatus()
  const { remainingMs } = grant!
  const ended = { ...old, remainingMs: 0 }
  expect(offlineMs({ grant, policies })).toBe(remainingMs)
  expect(offlineMs({ grant, policies: [...policies, old] })).toBe(7_200_000)
  expect(offlineMs({ grant, policies: [...policies, ended] })).toBe(remainingMs)
  expect(offlineMs({ grant, policies: [ended] })).toBe(0)
  expect(offlineMs({ grant: null, policies })).toBe(0)
})

it('does not say connected on an old response alone', () => {
  const { clock } = agentStatus()
  const since = (ms: number, push: AgentStatusWire['push']) =>
    cloudInWords(agentStatus({ lastContactAt: clock.now - ms, push }))
  expect(since(120_000, 'OFF')).toBe('connected')
  expect(since(120_001, 'OFF')).toBe('responded to the last sync')
  expect(since(120_001, 'DISCONNECTED')).toBe('responded to the last sync')
  expect(since(120_001, 'CONNECTED')).toBe('connected')
})

it('reports whether the cloud responds, and whether it refuses the device', () => {
  expect(cloudInWords(agentStatus({ connected: false, conditions: revoked }))).toBe('not connected')
  expect(cloudInWords(agentStatus({ conditions: revoked }))).toMatch(/refuses this device/)
  expect(cloudInWords(agentStatus({ conditions: condition('sync') }))).toBe('connected')
})

it('reports how exactly the time is known', () => {
  const clock = (latest: number | null) => clockHealth({ now: 1_000_000, earliest: 1_000_000, latest })
  expect(clock(null)).toEqual({ health: 'unbounded', widthMs: null })
  expect(clock(1_060_000)).toEqual({ health: 'exact', widthMs: 60_000 })
  expect(clock(1_060_001)).toEqual({ health: 'rough', widthMs: 60_001 })
})
