// The table of docs/decisions/sessions.md, cell by cell, against the state machine.
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { decimal } from '../../../src/core/pricing/amount.ts'
import {
  type ReservedItem,
  type Session,
  type SessionEvent,
  type SessionState,
  newSession,
  step,
} from '../../../src/core/sessions/session.ts'

const HOUR = 3_600_000
const START = 1_000_000
/** A third of the interval that is paid at last has passed. */
const NOW = START + HOUR + HOUR / 3

const items: readonly ReservedItem[] = [
  {
    item: { name: 'A', version: '', count: decimal(1), metaData: null },
    shares: [{ lineItemId: 'L', accounts: [lineAccount('i', 'L', 0)], charged: 60n }],
  },
]
const requester = { type: 'user', value: 'x', dictionary: {} }
const granted: SessionEvent = { kind: 'GRANTED', requester, items, intervalMs: HOUR }

const idle = newSession({ id: 's', instanceId: 'i', deviceId: null }, START)
const active = step(step(idle, granted, START).session, { kind: 'RENEWED', items }, START + HOUR).session
const locked = step(active, { kind: 'LOCKED' }, START + HOUR).session
const SESSIONS: Readonly<Record<SessionState, Session>> = {
  IDLE: idle,
  ACTIVE: active,
  LOCKED: locked,
  TERMINATED: { ...idle, state: 'TERMINATED' },
  FAILED: { ...idle, state: 'FAILED' },
  DISCONNECTED: { ...idle, state: 'DISCONNECTED' },
}

/** Each event of the table by its name there, and when it happens. */
const EVENTS: Readonly<Record<string, readonly [SessionEvent, at: number]>> = {
  GRANTED: [granted, NOW],
  'REFUSED, KEEP': [{ kind: 'REFUSED', then: 'KEEP' }, NOW],
  'REFUSED, END': [{ kind: 'REFUSED', then: 'END' }, NOW],
  HALTED: [{ kind: 'HALTED' }, NOW],
  RENEWED: [{ kind: 'RENEWED', items }, START + 2 * HOUR],
  NOT_RENEWED: [{ kind: 'NOT_RENEWED' }, START + 2 * HOUR],
  HEARTBEAT: [{ kind: 'HEARTBEAT' }, NOW],
  HEARTBEAT_MISSED: [{ kind: 'HEARTBEAT_MISSED' }, START + 1.5 * HOUR],
  IDLED_OUT: [{ kind: 'IDLED_OUT' }, START + 3000 * HOUR],
  CLOSED: [{ kind: 'CLOSED' }, NOW],
  FAILED: [{ kind: 'FAILED' }, NOW],
  LOCKED: [{ kind: 'LOCKED' }, NOW],
  'UNLOCKED, paid': [{ kind: 'UNLOCKED' }, NOW],
  'UNLOCKED, expired': [{ kind: 'UNLOCKED' }, START + 2 * HOUR],
  SUSPENDED: [{ kind: 'SUSPENDED' }, NOW],
}

const COMES_BACK: Readonly<Record<string, bigint>> = { nothing: 0n, 'the rest': 40n, 'the last renewal': 60n }

const page = readFileSync(new URL('../../../docs/decisions/sessions.md', import.meta.url), 'utf8')
const table = (page.split('## The state machine')[1] ?? '')
  .split('\n')
  .filter((line) => line.startsWith('|') && !line.startsWith('| -'))
  .map((line) =>
    line
      .split('|')
      .map((cell) => cell.trim())
      .slice(1, -1),
  )
const [head = [], ...rows] = table

const cells = rows.flatMap(([event = '', ...row]) =>
  head.slice(1, -1).flatMap((states, index) =>
    states.split(', ').map((state) => ({
      event,
      state: state as SessionState,
      next: row[index] ?? '',
      back: row.at(-1) ?? '',
    })),
  ),
)

describe('the table of the session’s state machine', () => {
  it('has every event and every state', () => {
    expect(rows.map(([event]) => event)).toEqual(Object.keys(EVENTS))
    expect(new Set(cells.map(({ state }) => state))).toEqual(new Set(Object.keys(SESSIONS)))
    expect(cells).toHaveLength(Object.keys(EVENTS).length * Object.keys(SESSIONS).length)
  })

  it.each(cells)('$event in $state leads to $next', ({ event, state, next, back }) => {
    const [happens, at] = EVENTS[event]!
    const session = SESSIONS[state]
    if (next === '–') {
      expect(() => step(session, happens, at)).toThrow('invariant')
      return
    }
    const after = step(session, happens, at)
    expect(after.session.state).toBe(next)
    const sum = after.refund.flatMap(({ shares }) => shares).reduce((total, { charged }) => total + charged, 0n)
    expect(sum).toBe(session.charge === null ? 0n : COMES_BACK[back])
  })
})
