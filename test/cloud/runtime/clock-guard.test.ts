import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type ClockDoubt, ClockGuard } from '../../../src/cloud/runtime/clock-guard.ts'
import { IDEMPOTENCY_LIFETIME_MS, forgetAnswers } from '../../../src/cloud/service-api/idempotency-key.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { TestDevice } from '../sync/test-device.ts'
import { DAY, START, Twin } from '../sync/twin.ts'

const MINUTE = 60_000

const ADMINISTRATOR = { kind: 'ADMINISTRATOR', keyId: 'key', name: 'Ada', issuer: null } as const

/** A machine: time passes on it, its wall clock may be wrong, and it may be booted. */
class Machine {
  passed = 0
  aheadMs = 0
  bootId = 'first'
  #bootedAt = 0
  readonly logged: unknown[] = []
  readonly #store: Pick<Store, 'transaction'>

  constructor(store: Pick<Store, 'transaction'>) {
    this.#store = store
  }

  boot(bootId: string): void {
    this.bootId = bootId
    this.#bootedAt = this.passed
  }

  /** A process of the twin on it. */
  start(): ClockGuard {
    return new ClockGuard({
      store: this.#store,
      clocks: {
        now: () => START + this.passed + this.aheadMs,
        sinceBoot: () => this.passed - this.#bootedAt,
        bootId: this.bootId,
        comparesDatabase: true,
      },
      log: { warn: (fields, message) => this.logged.push('code' in fields ? fields : message), info: () => undefined },
      settleAfterMs: () => 30 * DAY,
    })
  }
}

describe('the clock of a twin', () => {
  let twin: Twin
  let machine: Machine
  /** What the clock of the database shows; null: there is none. */
  let databaseAheadMs: number | null
  beforeEach(async () => {
    twin = await Twin.open()
    databaseAheadMs = null
    machine = new Machine({
      transaction: (work) =>
        twin.store.transaction((tx) =>
          work({
            ...tx,
            sweeps: {
              ...tx.sweeps,
              databaseTime: async () => (databaseAheadMs === null ? null : START + machine.passed + databaseAheadMs),
            },
          }),
        ),
    })
  })
  afterEach(async () => twin[Symbol.asyncDispose]())

  async function state(guard: ClockGuard): Promise<ClockDoubt['code'] | 'TRUSTED'> {
    await guard.look()
    expect(guard.isTrusted()).toBe(guard.doubt === null)
    return guard.doubt?.code ?? 'TRUSTED'
  }

  const lastRestore = () => twin.store.read((reader) => reader.edge.recoveries.lastRestore())

  it('is not trusted before the first look, and is trusted over an empty store', async () => {
    const guard = machine.start()
    expect([guard.isTrusted(), guard.doubt]).toEqual([false, null])
    expect(await state(guard)).toBe('TRUSTED')
  })

  it.each([
    ['forward', 31 * DAY],
    ['back', -31 * DAY],
    ['by little more than is a correction', 5 * MINUTE + 1],
  ])('is in doubt at once when it jumps %s, and trusted when it has jumped back', async (_name, jump) => {
    const guard = machine.start()
    await guard.look()
    machine.passed += MINUTE
    machine.aheadMs = jump
    expect(guard.isTrusted()).toBe(false)
    expect(await state(guard)).toBe('CLOCK_JUMPED')
    expect(guard.doubt).toEqual({ code: 'CLOCK_JUMPED', aheadMs: jump })
    machine.passed += DAY
    expect(await state(guard)).toBe('CLOCK_JUMPED')
    machine.aheadMs = 0
    expect(await state(guard)).toBe('TRUSTED')
    expect(machine.logged).toEqual([
      { code: 'CLOCK_JUMPED', aheadMs: jump },
      'the clock is trusted again: sweeps continue',
    ])
  })

  it.each([
    ['forward', 31 * DAY],
    ['back', -31 * DAY],
  ])('that jumps %s is replaced by the time since boot, over restarts too', async (_name, jump) => {
    const guard = machine.start()
    await guard.look()
    machine.passed += MINUTE
    await guard.look()
    machine.aheadMs = jump
    const present = () => START + machine.passed
    expect(guard.present()).toBe(present())
    await guard.look()
    machine.passed += 40 * DAY
    expect(guard.present()).toBe(present())
    const next = machine.start()
    await next.look()
    machine.passed += DAY
    expect([next.doubt?.code, next.present()]).toEqual(['CLOCK_JUMPED', present()])
    await next.confirm(ADMINISTRATOR)
    expect(next.present()).toBe(present() + jump)
    machine.aheadMs = 0
    expect(next.present()).toBe(present() + jump)
  })

  it('of a machine that was booted is replaced by the newest record and the time since boot while it is behind', async () => {
    await machine.start().look()
    machine.boot('second')
    machine.aheadMs = -DAY
    const guard = machine.start()
    await guard.look()
    machine.passed += MINUTE
    expect([guard.doubt?.code, guard.present()]).toEqual(['CLOCK_BEHIND_RECORD', START + machine.passed])
  })

  it('of a machine that was booted counts while it is ahead, as the machine may have been off', async () => {
    await machine.start().look()
    machine.passed += 8 * DAY
    machine.boot('second')
    const guard = machine.start()
    await guard.look()
    expect([guard.doubt?.code, guard.present()]).toEqual(['CLOCK_AHEAD_OF_RECORD', START + machine.passed])
  })

  it('may be corrected by some minutes, and jump from there', async () => {
    const guard = machine.start()
    for (machine.aheadMs of [0, 4 * MINUTE, -MINUTE]) expect(await state(guard)).toBe('TRUSTED')
    machine.aheadMs = 5 * MINUTE
    expect(await state(guard)).toBe('CLOCK_JUMPED')
  })

  it('is trusted again when an administrator confirms it, who is in the audit', async () => {
    const guard = machine.start()
    await guard.look()
    machine.aheadMs = 31 * DAY
    expect(await state(guard)).toBe('CLOCK_JUMPED')
    await guard.confirm(ADMINISTRATOR)
    expect(await state(guard)).toBe('TRUSTED')
    expect(await state(machine.start())).toBe('TRUSTED')
    const { records } = await twin.store.read((reader) => reader.edge.audit.list({}, 9))
    expect(records).toMatchObject([{ action: 'CONFIRM_CLOCK', by: ADMINISTRATOR }])
  })

  it.each([
    ['has jumped forward', () => (machine.aheadMs = 31 * DAY), 31 * DAY],
    ['has jumped back', () => (machine.aheadMs = -31 * DAY), -31 * DAY],
    [
      'was off for long',
      () => {
        machine.passed += 31 * DAY
        machine.boot('second')
      },
      31 * DAY,
    ],
  ])(
    'moves the start of inactivity and the last restore when it is confirmed after it %s',
    async (_name, change, movedMs) => {
      await twin.setLineItem('ACT-1', { quantity: 100n })
      const device = await TestDevice.join(twin)
      const epoch = () => twin.store.read((reader) => reader.edge.epochs.get(device.id, 1))
      twin.time = START
      await device.sync()
      await twin.store.transaction((tx) => tx.edge.recoveries.restored(START, true))
      await machine.start().look()
      change()
      const guard = machine.start()
      expect(await state(guard)).not.toBe('TRUSTED')
      await guard.confirm(ADMINISTRATOR)
      expect(await epoch()).toMatchObject({ quietSince: START + movedMs })
      expect(await lastRestore()).toBe(START + movedMs)
    },
  )

  it.each([
    ['is right again', async () => (machine.aheadMs = 0), 0],
    ['is confirmed', (guard: ClockGuard) => guard.confirm(ADMINISTRATOR), -31 * DAY],
  ])('gives a restore no time before it %s', async (_name, settle, aheadMs) => {
    await machine.start().look()
    machine.aheadMs = -31 * DAY
    const guard = machine.start()
    await twin.store.transaction((tx) => tx.edge.recoveries.restored(0, false))
    await guard.look()
    expect(await lastRestore()).toBe(Infinity)
    machine.passed += DAY
    await settle(guard)
    await guard.look()
    expect(await lastRestore()).toBe(START + DAY + aheadMs)
  })

  it('that jumps while no twin runs is in doubt for the next one, over the whole time since boot', async () => {
    await machine.start().look()
    machine.passed += 100 * DAY
    expect(await state(machine.start())).toBe('TRUSTED')
    machine.passed += DAY
    machine.aheadMs = 6 * MINUTE
    const guard = machine.start()
    expect(await state(guard)).toBe('CLOCK_JUMPED')
    expect(await state(machine.start())).toBe('CLOCK_JUMPED')
    machine.aheadMs = 0
    expect(await state(guard)).toBe('TRUSTED')
  })

  it('of a machine that was booted is in doubt before the newest record, until it has passed it', async () => {
    await machine.start().look()
    machine.boot('second')
    machine.aheadMs = -DAY
    const guard = machine.start()
    expect(await state(guard)).toBe('CLOCK_BEHIND_RECORD')
    machine.passed += DAY
    expect(await state(guard)).toBe('TRUSTED')
  })

  it('of a machine that was booted is in doubt long after the newest record, and not after a week', async () => {
    await machine.start().look()
    machine.passed += 7 * DAY
    machine.boot('second')
    expect(await state(machine.start())).toBe('TRUSTED')
    machine.passed += 7 * DAY + 1
    machine.boot('third')
    const guard = machine.start()
    expect(await state(guard)).toBe('CLOCK_AHEAD_OF_RECORD')
    machine.passed += DAY
    expect(await state(guard)).toBe('CLOCK_AHEAD_OF_RECORD')
    await guard.confirm(ADMINISTRATOR)
    expect(await state(guard)).toBe('TRUSTED')
  })

  it('of a machine that is off every night deletes responses that were kept for their lifetime while it was on', async () => {
    const scopes = Array.from({ length: 9 }, (_, day) => `day ${day}`)
    for (const scope of scopes) {
      machine.boot(scope)
      const guard = machine.start()
      await guard.look()
      const answer = { scope, requestHash: 'request', answer: '{}', created: START + machine.passed }
      await twin.store.transaction((tx) => tx.idempotency.add(answer))
      machine.passed += IDEMPOTENCY_LIFETIME_MS / 2 - 1
      await guard.look()
      await forgetAnswers(twin.store, START + machine.passed)
      machine.passed += IDEMPOTENCY_LIFETIME_MS / 2
    }
    const kept = await twin.store.transaction((tx) => tx.idempotency.find(scopes))
    // Both for less than their lifetime.
    expect([...kept.keys()].toSorted()).toEqual(['day 7', 'day 8'])
    expect(await twin.store.read((reader) => reader.sweeps.clockGaps())).toHaveLength(2)
  })

  it.each([
    [
      'is days ahead after a boot',
      async () => {
        machine.boot('second')
        machine.aheadMs = 2 * DAY
        await machine.start().look()
      },
    ],
    [
      'is confirmed after a jump',
      async () => {
        machine.aheadMs = 31 * DAY
        const guard = machine.start()
        await guard.look()
        await guard.confirm(ADMINISTRATOR)
      },
    ],
  ])('that %s deletes no response of an idempotency key before its lifetime', async (_name, change) => {
    const forget = () => forgetAnswers(twin.store, START + machine.passed + machine.aheadMs)
    const kept = () => twin.store.transaction(async (tx) => (await tx.idempotency.find(['scope'])).size)
    await machine.start().look()
    const answer = { scope: 'scope', requestHash: 'request', answer: '{}', created: START }
    await twin.store.transaction((tx) => tx.idempotency.add(answer))
    machine.passed += MINUTE
    await change()
    expect(await state(machine.start())).toBe('TRUSTED')
    await forget()
    expect(await kept()).toBe(1)
    machine.passed += IDEMPOTENCY_LIFETIME_MS
    await forget()
    expect(await kept()).toBe(0)
  })

  it('is in doubt while it differs from the clock of the database', async () => {
    const guard = machine.start()
    databaseAheadMs = 4 * MINUTE
    expect(await state(guard)).toBe('TRUSTED')
    for (databaseAheadMs of [-6 * MINUTE, 6 * MINUTE]) {
      expect(await state(guard)).toBe('CLOCK_DIFFERS_FROM_DATABASE')
    }
    await guard.confirm(ADMINISTRATOR)
    expect(await state(guard)).toBe('CLOCK_DIFFERS_FROM_DATABASE')
    databaseAheadMs = 0
    expect(await state(guard)).toBe('TRUSTED')
  })

  it('of one node is trusted when another machine that trusts its own has the same time, and not otherwise', async () => {
    const guard = machine.start()
    await guard.look()
    machine.aheadMs = 31 * DAY
    expect(await state(guard)).toBe('CLOCK_JUMPED')
    const elsewhere = (aheadMs: number) =>
      twin.store.transaction((tx) =>
        tx.sweeps.noteClock({ at: START + machine.passed + aheadMs, sinceBoot: 7, bootId: 'elsewhere' }),
      )
    await elsewhere(0)
    expect(await state(guard)).toBe('CLOCK_JUMPED')
    await elsewhere(31 * DAY)
    expect(await state(guard)).toBe('TRUSTED')
    // And this one is no record of another node.
    machine.aheadMs = 62 * DAY
    expect(await state(guard)).toBe('CLOCK_JUMPED')
  })

  it.for([1, 2])(
    'is not recorded while transaction %i of a look fails, also because of others in its commit',
    async (nth) => {
      const disk = { isFull: false, transactions: 0 }
      const full = new CodedError('NOT_RECORDED', 'the disk is full')
      const onDisk = new Machine({
        transaction: async (work) => {
          disk.transactions += 1
          if (disk.isFull && disk.transactions === nth) throw full
          return twin.store.transaction(work)
        },
      })
      const guard = onDisk.start()
      await guard.look()
      Object.assign(disk, { isFull: true, transactions: 0 })
      await expect(guard.look()).rejects.toBe(full)
      expect(() => guard.requireRecorded()).toThrow(full)
      expect(guard.isRecorded).toBe(false)
      disk.isFull = false
      for (let looks = 0; looks < 2; looks += 1) await guard.look()
      expect(guard.isRecorded).toBe(true)
      expect(onDisk.logged).toEqual(['the database can be written again'])
    },
  )
})
