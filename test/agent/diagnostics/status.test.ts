import { expect, it } from 'vitest'
import { type StatusDeps, statusOf } from '../../../src/agent/diagnostics/status.ts'
import { agentStatus } from '../../cli/agent-status.ts'

/** A device with these conditions of its link, held back or not. */
function conditionsOf(
  suspension: ReturnType<typeof agentStatus>['suspension'],
  conditions: readonly (readonly [subject: string, code: string])[],
  changes: Partial<StatusDeps> = {},
): readonly string[] {
  const { accounts: _, ...link } = agentStatus({ suspension })
  const health = conditions.map(([subject, code]) => ({ subject, code, message: '', since: 1, details: {} }))
  const deps = {
    version: '1',
    startedAt: 1,
    ledger: { accounts: () => [], burnedOf: () => 0n, durability: 'durable', grant: () => null, lastEntry: () => 0 },
    link: { status: () => ({ ...link, conditions: health }) },
    clock: { reading: () => ({ now: 2, earliest: 1, latest: null }) },
    journal: { condition: () => null },
    salvages: [],
    edits: [],
    wear: { reading: () => null, condition: () => null },
    supply: { conditions: () => [] },
    reloadNotice: () => null,
    lastBackup: () => null,
    backupMaxAgeMs: () => 0,
    ...changes,
  } as unknown as StatusDeps
  return statusOf(deps).conditions.map(({ subject, code }) => `${subject}: ${code}`)
}

const locked = { state: 'LOCKED', since: 1 } as const
const terminated = { state: 'TERMINATED', since: 1 } as const

it('a device that is held back is told so once, without what follows from it', () => {
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

it('a session alone that is locked is told', () => {
  expect(conditionsOf(null, [['session i', 'SESSION_LOCKED']])).toEqual(['session i: SESSION_LOCKED'])
})

it('a backup that is expected, and is too old or was never made, is a condition', () => {
  const since = (at: number | null, maxAge: number) =>
    conditionsOf(null, [], {
      lastBackup: () => (at === null ? null : { at, file: '/media/usb/press-4.db' }),
      backupMaxAgeMs: () => maxAge,
      clock: { reading: () => ({ now: 1_000, earliest: 1_000, latest: null }) },
    })
  expect(since(null, 0)).toEqual([])
  expect(since(1, 0)).toEqual([])
  expect(since(900, 100)).toEqual([])
  expect(since(899, 100)).toEqual(['backup: BACKUP_OVERDUE'])
  expect(since(null, 100)).toEqual(['backup: BACKUP_OVERDUE'])
  // A clock that was set back makes no backup too old.
  expect(since(5_000, 100)).toEqual([])
})
