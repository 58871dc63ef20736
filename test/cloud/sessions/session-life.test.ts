// The sweep of overdue sessions, and commands: what an error leaves behind, and what the device hears.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { type SuspensionCommand, suspendDevice } from '../../../src/cloud/devices/suspend-device.ts'
import { Policies } from '../../../src/cloud/policy/load-policy.ts'
import { commandDeviceSession } from '../../../src/cloud/sessions/command-device-session.ts'
import { commandSession } from '../../../src/cloud/sessions/command-session.ts'
import { SESSIONS_KEPT_MAX, takeSessions } from '../../../src/cloud/sessions/device-sessions.ts'
import {
  SESSIONS_OPENED_MAX,
  type SessionDeps,
  closeSession,
  heartbeat,
  heartbeatOfDevice,
  openSession,
  requestInSession,
  sweepNextSession,
} from '../../../src/cloud/sessions/session-life.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { decimal, wholeTokens } from '../../../src/core/pricing/amount.ts'
import { type Session, newSession } from '../../../src/core/sessions/session.ts'
import type { SessionCommand, SessionSnapshot } from '../../../src/protocol/edge/sessions.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { cloudShortages } from '../sync/grants/shortages.ts'
import { type Sealed, TestDevice } from '../sync/test-device.ts'
import { INSTANCE, START, Twin } from '../sync/twin.ts'

const HOUR = 3_600_000
const DAY = 24 * HOUR

let twin: Twin
let deps: SessionDeps
beforeEach(async () => {
  twin = await Twin.open()
  await twin.setRates({ Print: 1 })
  await twin.setLineItem('ACT-1', { quantity: wholeTokens(100) })
  deps = {
    store: twin.store,
    policies: twin.policies,
    shortages: cloudShortages(),
    newId: randomUUID,
    sessionIntervalMs: HOUR,
    trustsClock: () => true,
  }
})
afterEach(async () => twin[Symbol.asyncDispose]())

const anybody = () => undefined
const open = async (deviceId: string | null = null) =>
  (await openSession(deps, { instanceId: INSTANCE, deviceId, opening: null }, START)).id
/** Tokens of the line item that are charged. */
const charged = async () => (await twin.pool(lineAccount(INSTANCE, 'ACT-1', 0))).charged
const stateOf = async (id: string) => (await twin.store.read((reader) => reader.sessions.get(id)))?.state

async function active(count = 10, at = START, deviceId: string | null = null): Promise<string> {
  const sessionId = await open(deviceId)
  const items = [{ name: 'Print', version: '', count: decimal(String(count)) }]
  const request = { requester: { type: 'user', value: 'ada', dictionary: {} }, items }
  const order = { sessionId, correlationId: randomUUID(), request, metaData: [null], rollbackOnDeny: true }
  expect(await requestInSession(deps, order, anybody, at)).toMatchObject({ granted: true })
  return sessionId
}

/** Rules that cannot be read. */
class Unreadable extends Policies {
  readonly #error: Error
  constructor(error: Error) {
    super({ max: 1, undecidedClock: 'allow' })
    this.#error = error
  }
  override lockShared(): never {
    throw this.#error
  }
}
const failing = (error: Error): SessionDeps => ({ ...deps, policies: new Unreadable(error) })

describe('the sweep', () => {
  it('renews the session that has waited longest, one at a time, and says when none is left', async () => {
    const ids = [await active(), await active()]
    expect(await sweepNextSession(deps, START + HOUR - 1)).toBe(false)
    expect(await sweepNextSession(deps, START + HOUR)).toBe(true)
    expect(await charged()).toBe(wholeTokens(30))
    expect(await sweepNextSession(deps, START + HOUR)).toBe(true)
    expect(await sweepNextSession(deps, START + HOUR)).toBe(false)
    expect([await charged(), await stateOf(ids[0]!), await stateOf(ids[1]!)]).toEqual([
      wholeTokens(40),
      'ACTIVE',
      'ACTIVE',
    ])
  })

  it('waits while the clock is in doubt, and so do the timers of every operation', async () => {
    const [id, idle] = [await active(), await open()]
    const doubting = { ...deps, trustsClock: () => false }
    expect(await sweepNextSession(doubting, START + 90 * DAY)).toBe(false)
    expect(await heartbeat(doubting, id, anybody, START + 90 * DAY)).toMatchObject({ operable: true })
    expect(await heartbeat(doubting, idle, anybody, START + 90 * DAY)).toMatchObject({ operable: true })
    expect([await charged(), await stateOf(id), await stateOf(idle)]).toEqual([wholeTokens(10), 'ACTIVE', 'IDLE'])
  })

  it('charges a session from the present when a clock that was ahead at its request has been corrected', async () => {
    const ahead = START + 20 * DAY
    const id = await active(10, ahead)
    const now = START + HOUR
    expect(await heartbeat(deps, id, anybody, now)).toMatchObject({
      operable: true,
      session: { charge: { from: now, until: now + HOUR } },
    })
    expect(await charged()).toBe(wholeTokens(10))
  })

  it('charges an unused session from the present after a clock that was ahead has been corrected', async () => {
    const id = await active(10, START + 20 * DAY)
    await active(10, START)
    const now = START + HOUR / 2
    expect(await sweepNextSession({ ...deps, trustsClock: () => false }, now)).toBe(false)
    expect(await sweepNextSession(deps, now)).toBe(true)
    expect(await twin.store.read((reader) => reader.sessions.get(id))).toMatchObject({ charge: { from: now } })
    expect([await sweepNextSession(deps, now), await charged()]).toEqual([false, wholeTokens(20)])
  })

  it('charges each interval once when nodes whose clocks differ by more than an interval sweep in turns', async () => {
    const [second, minutes] = [1_000, 10]
    deps = { ...deps, sessionIntervalMs: 60 * second }
    await active(1, START)
    for (let passed = 0; passed < minutes * 60 * second; passed += 10 * second) {
      for (const ahead of [0, 9 * 60 * second]) {
        const [session] = await twin.store.read((reader) => reader.sessions.live(INSTANCE, 1))
        await heartbeat(deps, session!.id, anybody, START + passed + ahead)
        while (await sweepNextSession(deps, START + passed + ahead)) continue
      }
    }
    expect(Number(await charged()) / 1e6).toBeLessThanOrEqual(minutes + 1)
    expect(Number(await charged()) / 1e6).toBeGreaterThanOrEqual(minutes - 1)
  })

  it('gets the heartbeats of a device also after a clock that was ahead has been corrected', async () => {
    const { id: deviceId } = await TestDevice.join(twin)
    const id = await active(10, START + 20 * DAY, deviceId)
    const now = START + HOUR
    await twin.store.transaction(async (tx) => {
      await tx.sessions.lock(id)
      await heartbeatOfDevice(tx, deviceId, now, new Set([id]))
    })
    expect(await twin.store.read((reader) => reader.sessions.get(id))).toMatchObject({ lastHeartbeat: now })
  })

  it('ends a session that meets an error as FAILED, refunds nothing, and passes the error on', async () => {
    const [id, other] = [await active(), await active()]
    await expect(sweepNextSession(failing(new Error('broken')), START + HOUR)).rejects.toThrow('broken')
    const states = [await stateOf(id), await stateOf(other)]
    expect(states.toSorted()).toEqual(['ACTIVE', 'FAILED'])
    expect(await sweepNextSession(deps, START + HOUR)).toBe(true)
    expect(await sweepNextSession(deps, START + HOUR)).toBe(false)
    expect(await charged()).toBe(wholeTokens(30))
  })

  it('leaves a session due when the store fails', async () => {
    const id = await active()
    const away = new CodedError('DATABASE_UNREACHABLE', 'away')
    await expect(sweepNextSession(failing(away), START + HOUR)).rejects.toBe(away)
    expect(await stateOf(id)).toBe('ACTIVE')
    expect(await sweepNextSession(deps, START + HOUR)).toBe(true)
  })

  it('passes on an error that occurs before any session is found', async () => {
    const broken = { ...deps, store: { ...twin.store, transaction: () => Promise.reject(new Error('no database')) } }
    await expect(sweepNextSession(broken as SessionDeps, START + HOUR)).rejects.toThrow('no database')
  })

  it.each([
    ['ended', (id: string) => closeSession(deps, id, anybody, START + HOUR - 1), 'TERMINATED'],
    ['deleted', (id: string) => twin.store.transaction((tx) => tx.sessions.remove(id)), undefined],
  ])('that fails for a session that was %s meanwhile leaves it so', async (_how, change, state) => {
    const id = await active()
    let isSecond = false
    const meanwhile: Store = {
      ...twin.store,
      transaction: async (work, ...rest) => {
        if (isSecond) await change(id)
        isSecond = true
        return twin.store.transaction(work, ...rest)
      },
    }
    const broken = { ...failing(new Error('broken')), store: meanwhile }
    await expect(sweepNextSession(broken, START + HOUR)).rejects.toThrow('broken')
    expect(await stateOf(id)).toBe(state)
  })
})

describe('commands', () => {
  it('for a session that is in the wanted state change nothing', async () => {
    const id = await active()
    expect(await commandSession(deps, { id, command: 'UNLOCK' }, START + 1)).toMatchObject({
      outcome: 'DONE',
      session: { state: 'ACTIVE', since: START },
    })
    await commandSession(deps, { id, command: 'LOCK' }, START + 1)
    expect(await commandSession(deps, { id, command: 'LOCK' }, START + 2)).toMatchObject({
      outcome: 'DONE',
      session: { state: 'LOCKED', since: START + 1 },
    })
    const idle = await open()
    expect(await commandSession(deps, { id: idle, command: 'UNLOCK' }, START + 1)).toMatchObject({
      session: { state: 'IDLE', since: START },
    })
  })

  it('for an unknown session say how to order it before it is known; other errors pass', async () => {
    await expect(commandSession(deps, { id: randomUUID(), command: 'LOCK' }, START)).rejects.toMatchObject({
      code: 'NOT_FOUND',
      message: expect.stringContaining('name the device') as string,
    })
    const id = await active()
    const away = new CodedError('DATABASE_UNREACHABLE', 'away')
    await expect(commandSession(failing(away), { id, command: 'LOCK' }, START + HOUR)).rejects.toBe(away)
    const broken = commandSession(failing(new Error('broken')), { id, command: 'LOCK' }, START + HOUR)
    await expect(broken).rejects.toThrow('broken')
  })
})

const reported = (id: string, instanceId = INSTANCE): SessionSnapshot => ({
  ...{ id, instanceId, state: 'IDLE', created: START, since: START },
  ...{ lastHeartbeat: 0, lastAccessRequest: START, requester: null, charge: null },
})

describe('a command for a device', () => {
  const suspend = (
    sessions: SessionDeps,
    deviceId: string,
    store: Pick<Store, 'read' | 'transaction'> = twin.store,
    command: SuspensionCommand = 'LOCK',
  ) => suspendDevice({ store, sessions, now: () => START + HOUR, present: () => START + HOUR }, deviceId, command)
  /** A store that names these sessions as not ended, whatever they are. */
  const naming = (...ids: string[]) => ({
    transaction: twin.store.transaction.bind(twin.store),
    read: async <T>() => ids as T,
  })

  it('passes over sessions that were closed or deleted meanwhile, and reaches the others', async () => {
    const { id: deviceId } = await TestDevice.join(twin)
    const [closed, own] = [await open(deviceId), await open(deviceId)]
    await closeSession(deps, closed, anybody, START)
    await suspend(deps, deviceId, naming(closed, randomUUID(), own))
    expect([await stateOf(closed), await stateOf(own)]).toEqual(['TERMINATED', 'LOCKED'])
  })

  it.each([new CodedError('DATABASE_UNREACHABLE', 'away'), new Error('broken')])(
    'that meets another error says so, and is completed when it is repeated: %s',
    async (error) => {
      const { id: deviceId } = await TestDevice.join(twin)
      const id = await active(10, START, deviceId)
      await expect(suspend(failing(error), deviceId, naming(id))).rejects.toBe(error)
      expect(await twin.device(deviceId)).toMatchObject({ suspension: { state: 'LOCKED', since: START + HOUR } })
      await suspend(deps, deviceId, naming(id))
      expect(await stateOf(id)).toBe<Session['state']>('LOCKED')
    },
  )

  it('ends all sessions of a device, also when it enrolls again at the same moment', async () => {
    const { id: deviceId } = await TestDevice.join(twin)
    const id = await active(10, START, deviceId)
    const enrollAgain = () =>
      twin.store.transaction(async (tx) => {
        const device = await tx.edge.devices.lock(deviceId)
        if (device?.suspension?.state === 'TERMINATED') await tx.edge.devices.save({ ...device, suspension: null })
      })
    const read: Store['read'] = async (work) => {
      const sessions = await twin.store.read(work)
      await enrollAgain()
      return sessions
    }
    await suspend(deps, deviceId, { transaction: twin.store.transaction.bind(twin.store), read }, 'TERMINATE')
    expect([await stateOf(id), (await twin.device(deviceId)).suspension]).toEqual(['TERMINATED', null])
  })
})

describe.each<[SuspensionCommand, SuspensionCommand]>([
  ['LOCK', 'UNLOCK'],
  ['UNLOCK', 'LOCK'],
])('%s of a device, and at the same moment %s on another node', (earlier, later) => {
  it('leaves its sessions as the later command wants them', async () => {
    const { id: deviceId } = await TestDevice.join(twin)
    const [own, other] = [await open(deviceId), await open()]
    const device = await twin.device(deviceId)
    const kept = { ...reported(randomUUID()), state: later === 'LOCK' ? ('IDLE' as const) : ('LOCKED' as const) }
    await twin.store.transaction((tx) => takeSessions(tx, device, [kept], null))
    const command = (which: SuspensionCommand, read: Store['read']) => {
      const { transaction } = twin.store
      const store = { transaction: transaction.bind(twin.store), read }
      return suspendDevice({ store, sessions: deps, now: () => START, present: () => START }, deviceId, which)
    }
    const read = twin.store.read.bind(twin.store)
    if (earlier === 'UNLOCK') await command('LOCK', read)
    await command(earlier, async (work) => {
      const sessions = await read(work)
      await command(later, read)
      return sessions
    })
    expect([await stateOf(own), await stateOf(other)]).toEqual([later === 'LOCK' ? 'LOCKED' : 'IDLE', 'IDLE'])
    expect(await read((reader) => reader.sessions.commands(deviceId, 10))).toEqual([{ id: kept.id, command: later }])
    expect((await twin.device(deviceId)).suspension?.state).toBe(later === 'LOCK' ? 'LOCKED' : undefined)
  })
})

describe('a session that a device opens in the cloud', () => {
  it('is refused while the device has too many others that have not ended', async () => {
    const { id: deviceId } = await TestDevice.join(twin)
    const [first] = [await open(deviceId), await open()]
    await twin.store.transaction(async (tx) => {
      for (let n = 1; n < SESSIONS_OPENED_MAX; n += 1)
        await tx.sessions.insert(newSession({ id: randomUUID(), instanceId: INSTANCE, deviceId }, START))
    })
    await expect(open(deviceId)).rejects.toMatchObject({ code: 'SESSIONS_LIMITED' })
    const { id: other } = await TestDevice.join(twin)
    expect([await stateOf(await open(other)), await stateOf(await open())]).toEqual(['IDLE', 'IDLE'])
    await closeSession(deps, first, anybody, START)
    expect(await stateOf(await open(deviceId))).toBe('IDLE')
  })
})

describe('a session that a device keeps', () => {
  const OTHER = randomUUID()
  async function keeping(): Promise<{ device: TestDevice; id: string }> {
    await twin.addInstance(OTHER)
    const device = await TestDevice.join(twin, [INSTANCE, OTHER])
    const id = randomUUID()
    await report(device, reported(id))
    await notified()
    return { device, id }
  }

  async function report(device: TestDevice, ...sessions: SessionSnapshot[]): Promise<readonly SessionCommand[]> {
    return deliver(device, await device.sealAs({ ...device.payload(), sessions }))
  }

  async function deliver(device: TestDevice, sealed: Sealed): Promise<readonly SessionCommand[]> {
    Object.assign(device.state, { unacknowledged: sealed, seq: sealed.seq, hash: sealed.hash })
    const taken = await twin.sync(device.id, sealed.document)
    if (!taken.accepted) throw new Error(taken.problem)
    const answer = await device.accept(taken.answer)
    return answer.outcome === 'MERGED' ? answer.sessions : []
  }

  /** Takes the change notifications for devices. */
  const notified = () =>
    twin.store.transaction(async (tx) => {
      const messages = await tx.outbox.claim(1_000, START + DAY, START + DAY)
      await tx.outbox.remove(messages.map(({ id }) => id))
      return messages.map(({ notification }) => notification).filter(({ kind }) => kind === 'device')
    })

  it('is commanded and closed by its device, which is notified at once', async () => {
    const { device, id } = await keeping()
    const toDevice = [{ kind: 'device', deviceId: device.id, reason: 'session' }]
    expect(await commandSession(deps, { id, command: 'LOCK' }, START)).toMatchObject({ outcome: 'PENDING' })
    expect(await notified()).toEqual(toDevice)
    expect(await closeSession(deps, id, anybody, START)).toMatchObject({ operable: true, pending: true })
    expect(await notified()).toEqual(toDevice)
    expect(await stateOf(id)).toBe('IDLE')
  })

  it('is commanded with the answers to its device, a thousand sessions at a time', async () => {
    const { device } = await keeping()
    const ids = Array.from({ length: 1_001 }, () => randomUUID())
    await report(device, ...ids.slice(0, 1_000).map((id) => reported(id)))
    await report(device, ...ids.slice(1_000).map((id) => reported(id)))
    await twin.store.transaction(async (tx) => {
      for (const id of ids) await tx.sessions.setWanted(id, 'TERMINATE')
    })
    const first = await report(device)
    expect(first).toHaveLength(1_000)
    const rest = await report(
      device,
      ...first.map(({ id }): SessionSnapshot => ({ ...reported(id), state: 'TERMINATED' })),
    )
    const left = ids.filter((id) => !first.some((each) => each.id === id))
    expect(rest).toEqual(left.map((id) => ({ id, command: 'TERMINATE' })))
  })

  /** From now on, transactions of the twin have these functions for sessions. */
  function withSessions(change: (sessions: Transaction['sessions']) => Partial<Transaction['sessions']>): void {
    const transaction = twin.store.transaction.bind(twin.store)
    vi.spyOn(twin.store, 'transaction').mockImplementation((work) =>
      transaction((tx) => work({ ...tx, sessions: { ...tx.sessions, ...change(tx.sessions) } })),
    )
  }

  it('is locked only by a sync that reports it or begins an epoch: others take no longer for many sessions', async () => {
    const { device, id } = await keeping()
    await commandSession(deps, { id, command: 'LOCK' }, START)
    const locked: string[] = []
    withSessions((sessions) => ({
      lockSome: (ids) => {
        locked.push(...ids)
        return sessions.lockSome(ids)
      },
    }))
    expect(await report(device)).toEqual([{ id, command: 'LOCK' }])
    expect(locked).toEqual([])
    await report(device, reported(id))
    expect(locked.splice(0)).toEqual([id])
    await device.attach()
    const first = await device.sealAs({ ...device.payload(), sessions: [] })
    await deliver(device, first)
    expect([locked.splice(0), await stateOf(id)]).toEqual([[id], 'DISCONNECTED'])
    await report(device, reported(id))
    locked.length = 0
    await deliver(device, first)
    expect([locked, await stateOf(id)]).toEqual([[], 'IDLE'])
  })

  it('is disconnected with all others of an epoch by one statement, as its device may keep many', async () => {
    const { device, id } = await keeping()
    const other = randomUUID()
    await report(device, reported(other))
    await device.attach()
    withSessions(() => ({ lock: vi.fn().mockRejectedValue(new Error('one after another')) }))
    await report(device)
    expect([await stateOf(id), await stateOf(other)]).toEqual(['DISCONNECTED', 'DISCONNECTED'])
  })

  it('is commanded with its device, and all others with the same statement, except one that has to end', async () => {
    const { device, id } = await keeping()
    const [other, ending] = [randomUUID(), randomUUID()]
    await report(device, reported(other), reported(ending))
    await closeSession(deps, ending, anybody, START)
    const one = vi.fn().mockRejectedValue(new Error('one after another'))
    withSessions(() => ({ lock: one, setWanted: one }))
    const now = () => START
    await suspendDevice({ store: twin.store, sessions: deps, now, present: now }, device.id, 'LOCK')
    const commands = await report(device)
    expect(new Map(commands.map((each) => [each.id, each.command]))).toEqual(
      new Map([
        [id, 'LOCK'],
        [other, 'LOCK'],
        [ending, 'TERMINATE'],
      ]),
    )
  })

  it('is reported with others: they are read and written with statements for all of them', async () => {
    const { device, id } = await keeping()
    const [added, early] = [randomUUID(), randomUUID()]
    await commandDeviceSession(deps, { deviceId: device.id, id: early, command: 'LOCK' }, START)
    const one = vi.fn().mockRejectedValue(new Error('one after another'))
    withSessions(() => ({ lock: one, insert: one, save: one, setWanted: one }))
    const locked = { ...reported(id), state: 'LOCKED' as const }
    expect(await report(device, locked, reported(added), reported(early))).toEqual([{ id: early, command: 'LOCK' }])
    const states = await Promise.all([id, added, early].map(stateOf))
    expect(states).toEqual(['LOCKED', 'IDLE', 'IDLE'])
  })

  it('is opened by a device beside others: a sync is the heartbeat of all, written with one statement', async () => {
    const { device } = await keeping()
    const ids = [await open(device.id), await open(device.id)]
    withSessions(() => ({ save: vi.fn().mockRejectedValue(new Error('one after another')) }))
    await report(device)
    const beats = await twin.store.read((reader) => Promise.all(ids.map((id) => reader.sessions.get(id))))
    expect(beats.map((session) => session?.lastHeartbeat)).toEqual([twin.now(), twin.now()])
  })

  it('is refused if the device has too many live sessions; the others are kept up to date', async () => {
    const { device, id } = await keeping()
    const [last, beyond, ended] = [randomUUID(), randomUUID(), randomUUID()]
    withSessions((sessions) => ({
      countKeptBy: async (deviceId) => SESSIONS_KEPT_MAX - 2 + (await sessions.countKeptBy(deviceId)),
    }))
    const end = (each: string): SessionSnapshot => ({ ...reported(each), state: 'TERMINATED' })
    const later = { ...reported(id), lastAccessRequest: START + 1 }
    await report(device, reported(last), reported(beyond), end(ended), later)
    expect([await stateOf(last), await stateOf(beyond), await stateOf(ended)]).toEqual([
      'IDLE',
      undefined,
      'TERMINATED',
    ])
    const session = await twin.store.read((reader) => reader.sessions.get(id))
    expect(session?.lastAccessRequest).toBe(START + 1)
    await report(device, reported(ended))
    expect(await stateOf(ended)).toBe('TERMINATED')
    await report(device, end(last))
    await report(device, reported(beyond))
    expect(await stateOf(beyond)).toBe('IDLE')
  })

  it('stays with its instance, though its device serves the other too', async () => {
    const { device, id } = await keeping()
    await report(device, { ...reported(id, OTHER), lastAccessRequest: START + 1 })
    const session = await twin.store.read((reader) => reader.sessions.get(id))
    expect(session).toMatchObject({ instanceId: INSTANCE, lastAccessRequest: START })
  })
})
