import { expect, it } from 'vitest'
import { type StatusDeps, derivedConditions, statusOf } from '../../../src/agent/diagnostics/status.ts'
import { limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { agentStatus } from '../../cli/agent-status.ts'

const ledger = {
  accounts: () => [],
  burnedOf: () => 0n,
  durability: 'durable',
  grantStatus: () => null,
  lastEntry: () => 0,
}

/** A device with these conditions of its link, held back or not. */
function depsOf(
  suspension: ReturnType<typeof agentStatus>['suspension'],
  conditions: readonly (readonly [subject: string, code: string])[],
  changes: Partial<StatusDeps> = {},
): StatusDeps {
  const { accounts: _, ...link } = agentStatus({ suspension })
  const health = conditions.map(([subject, code]) => ({ subject, code, message: '', since: 1 }))
  return {
    version: '1',
    startedAt: 1,
    ledger,
    policies: { get: () => undefined },
    link: { status: () => ({ ...link, conditions: health }) },
    clock: { reading: () => ({ now: 2, earliest: 1, latest: null }), wall: () => 2 },
    journal: { condition: () => null },
    salvages: [],
    edits: [],
    wear: { reading: () => null, condition: () => null },
    demand: { supplies: () => [] },
    reloadNotice: () => null,
    lastBackup: () => null,
    backupMaxAgeMs: () => 0,
    ...changes,
  } as unknown as StatusDeps
}

const shownOf = (deps: StatusDeps) => statusOf(deps, derivedConditions(deps))

function conditionsOf(...device: Parameters<typeof depsOf>): readonly string[] {
  return shownOf(depsOf(...device)).conditions.map(({ subject, code }) => `${subject}: ${code}`)
}

it('names the actions of balances as the rules in force do, or by their condition', () => {
  const policy = {
    lineItems: [
      {
        id: 'LW-1',
        actions: [
          { id: 'a', name: 'Design budget', conditionId: 'c' },
          { id: 'b', name: null, conditionId: 'c' },
          { id: 'd', name: '', conditionId: null },
        ],
      },
    ],
    conditions: [{ id: 'c', name: 'design' }],
  }
  const accounts = ['line/i/LW-1/0', ...['a', 'b', 'd', 'gone'].map((id) => `action/i/LW-1/${id}`), 'action/j/LW-1/a']
  const balance = { granted: 0n, used: 0n, refunded: 0n, returned: 0n, exhausted: false, unlimited: false }
  const { accounts: shown } = shownOf(
    depsOf(null, [], {
      ledger: { ...ledger, accounts: () => accounts.map((account) => [account, balance]) },
      policies: { get: (id: string) => (id === 'i' ? { compiled: { policy } } : undefined) },
    } as unknown as Partial<StatusDeps>),
  )
  expect(shown.map(({ actionName }) => actionName)).toEqual([null, 'Design budget', 'design', null, null, null])
})

it('calls tokens used up only where some were granted', () => {
  const supply = { account: lineAccount('i', 'LW-1', 0), left: 0n, quantity: 1n, lastsMs: null, exhausted: true }
  const conditionsWith = (grant: unknown) =>
    conditionsOf(null, [], {
      ledger: { ...ledger, grantStatus: () => grant },
      demand: { supplies: () => [supply] },
    } as unknown as Partial<StatusDeps>)
  expect(conditionsWith(null)).toEqual([])
  expect(conditionsWith({ term: 1, expiresAt: 1, remainingMs: 0 })).toEqual(['tokens of LW-1: TOKENS_USED_UP'])
})

it('warns of very many balances of requesters', () => {
  const balance = { granted: 0n, used: 0n, refunded: 0n, returned: 0n, exhausted: false, unlimited: false }
  const conditionsWith = (requesters: number) => {
    const accounts = [
      ...Array.from({ length: requesters }, (_, n) => [limitAccount('i', 'LW-1', { type: 'user', value: `${n}` }, 0)]),
      [lineAccount('i', 'LW-1', 0)],
    ].map(([account]) => [account, balance])
    return conditionsOf(null, [], { ledger: { ...ledger, accounts: () => accounts } } as unknown as Partial<StatusDeps>)
  }
  expect(conditionsWith(50_000)).toEqual([])
  expect(conditionsWith(50_001)).toEqual(['requesters: REQUESTERS_MANY'])
})

const locked = { state: 'LOCKED', since: 1 } as const
const terminated = { state: 'TERMINATED', since: 1 } as const

it('a suspended device names its suspension once, without its consequences', () => {
  expect(
    conditionsOf(locked, [
      ['device suspension', 'DEVICE_LOCKED'],
      ['session i', 'SESSION_LOCKED'],
      ['sync', 'CLOUD_UNREACHABLE'],
    ]),
  ).toEqual(['device suspension: DEVICE_LOCKED', 'sync: CLOUD_UNREACHABLE'])
  expect(
    conditionsOf(terminated, [
      ['device suspension', 'DEVICE_TERMINATED'],
      ['attach', 'DEVICE_TERMINATED'],
    ]),
  ).toEqual(['device suspension: DEVICE_TERMINATED'])
})

it('a session alone that is locked is named', () => {
  expect(conditionsOf(null, [['session i', 'SESSION_LOCKED']])).toEqual(['session i: SESSION_LOCKED'])
})

it('a backup that is expected, and is too old or was never made, is a condition', () => {
  const since = (at: number | null, maxAge: number) =>
    conditionsOf(null, [], {
      lastBackup: () => (at === null ? null : { at, file: '/media/usb/press-4.db' }),
      backupMaxAgeMs: () => maxAge,
      clock: { reading: () => ({ now: 1_000, earliest: 1_000, latest: null }), wall: () => 1_000 },
    })
  expect(since(null, 0)).toEqual([])
  expect(since(1, 0)).toEqual([])
  expect(since(900, 100)).toEqual([])
  expect(since(899, 100)).toEqual(['backup: BACKUP_OVERDUE'])
  expect(since(null, 100)).toEqual(['backup: BACKUP_OVERDUE'])
  // A clock that was set back makes no backup too old.
  expect(since(5_000, 100)).toEqual([])
})

it('shows a problem of the cloud before an older one of change notifications', () => {
  const late = { subject: 'cloud', code: 'CLOUD_UNREACHABLE', message: '', since: 9 }
  const early = { subject: 'push', code: 'BROKER_UNREACHABLE', message: '', since: 1 }
  const link = { ...agentStatus(), conditions: [early, late] }
  const changes = { link: { status: () => link } } as unknown as Partial<StatusDeps>
  expect(conditionsOf(null, [], changes)).toEqual(['cloud: CLOUD_UNREACHABLE', 'push: BROKER_UNREACHABLE'])
})

it('shows a full disk once', () => {
  const full = { subject: 'ledger', code: 'NOT_RECORDED', message: 'the disk is full', since: 1 } as const
  const changes = { journal: { condition: () => full } }
  expect(conditionsOf(null, [['journal', 'NOT_RECORDED']], changes)).toEqual(['ledger: NOT_RECORDED'])
})

it('compares the clock of the machine with the known time', () => {
  const wrong = (wall: number, latest: number | null) => {
    const reading = { now: 1_000_000, earliest: 1_000_000, latest }
    return conditionsOf(null, [], { clock: { reading: () => reading, wall: () => wall } })
  }
  expect(wrong(940_000, null)).toEqual([])
  expect(wrong(939_999, null)).toEqual(['clock: CLOCK_WRONG'])
  expect(wrong(9_000_000, null)).toEqual([])
  expect(wrong(1_062_000, 1_002_000)).toEqual([])
  expect(wrong(1_062_001, 1_002_000)).toEqual(['clock: CLOCK_WRONG'])
})

it('rules that can no longer be used are a condition, by the name of their instance', () => {
  const staleSince = (name: string | null, until: number) => {
    const [served] = agentStatus().policies
    const deps = depsOf(null, [], {
      policies: { get: () => ({}), isStale: ({}, { now }: { now: number }) => now > until, usableUntil: () => until },
      clock: { reading: () => ({ now: 1_000, earliest: 1_000, latest: null }), wall: () => 1_000 },
    } as unknown as Partial<StatusDeps>)
    const link = { ...deps.link.status(), policies: [{ ...served!, name }] }
    return shownOf({ ...deps, link: { status: () => link } }).conditions.map(
      ({ subject, code, message, since }) => `${subject}: ${code} since ${since}: ${message}`,
    )
  }
  expect(staleSince('Workshop', 1_000)).toEqual([])
  expect(staleSince('Workshop', 999)).toEqual([
    'rules of Workshop: POLICY_STALE since 999: The rules of Workshop could be used until 1970-01-01T00:00:00.999Z without confirmation by the cloud.',
  ])
  expect(staleSince(null, 999)).toMatchObject([expect.stringMatching(/^rules of 64d2028c-/)])
})
