// Whatever happens to sessions, in whatever order: memory and disk agree, nothing is spent beyond what is granted, and what
// a session gives back is never more than its running interval was charged. A failing run prints its seed and path.
import fc from '../../support/fast-check.ts'
import { expect, test } from 'vitest'
import { CodedError } from '../../../src/protocol/errors.ts'
import { available } from '../../../src/core/accounts/grant.ts'
import { HOUR, LINE, MINUTE, SessionDevice, essentialRules } from './device.ts'

const RUNS = Number(process.env['TALLYGATE_TEST_RUNS'] ?? 80)
const TOKEN = 1_000_000n
const SESSIONS_AT_FIRST = 2
/** Of one history: a session that cannot be charged for hours does not repeat its warning. */
const WARNINGS_MAX = 500

type Move =
  | { readonly kind: 'open' | 'turn' | 'fence' }
  /** Of all these sessions at the same moment. */
  | { readonly kind: 'request'; readonly sessions: readonly number[]; readonly count: number; readonly keep: boolean }
  | { readonly kind: 'halt' | 'heartbeat' | 'close'; readonly session: number }
  | { readonly kind: 'order'; readonly session: number; readonly order: 'LOCK' | 'UNLOCK' | 'TERMINATE' }
  | { readonly kind: 'pass' | 'power-cut'; readonly ms: number }
  /** Promises go on by so many steps: what is under way comes to stand between each other's. */
  | { readonly kind: 'steps'; readonly count: number }
  | { readonly kind: 'disk-full'; readonly commits: number }
  | { readonly kind: 'grant'; readonly tokens: bigint }
  | { readonly kind: 'one-off'; readonly count: number }
  | { readonly kind: 'connection'; readonly isUp: boolean }
  | { readonly kind: 'suspension'; readonly state: 'LOCKED' | 'TERMINATED' | null }

const session = fc.nat({ max: 3 })
const sessions = fc.uniqueArray(session, { minLength: 1, maxLength: 3 })
const count = fc.integer({ min: 1, max: 9 })
const shortly = fc.constantFrom(1, 1_000, MINUTE, 20 * MINUTE, 61 * MINUTE, 3 * HOUR)
/** Of the line item, micro-tokens; 0n where it is not essential. */
const cap = fc.constantFrom(0n, 3n * TOKEN, 30n * TOKEN)
const order = fc.constantFrom('LOCK' as const, 'UNLOCK' as const, 'TERMINATE' as const)

const move: fc.Arbitrary<Move> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({ kind: fc.constant('request' as const), sessions, count, keep: fc.boolean() }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constantFrom('halt' as const, 'heartbeat' as const, 'close' as const), session }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('order' as const), session, order }) },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('pass' as const), ms: shortly }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('steps' as const), count: fc.nat({ max: 6 }) }) },
  { weight: 5, arbitrary: fc.record({ kind: fc.constantFrom('open' as const, 'turn' as const, 'turn' as const) }) },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('disk-full' as const), commits: fc.integer({ min: 1, max: 3 }) }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('power-cut' as const), ms: shortly }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('fence' as const) }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant('grant' as const), tokens: fc.bigInt({ min: 1n, max: 12n }) }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('one-off' as const), count }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('connection' as const), isUp: fc.boolean() }) },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('suspension' as const),
      state: fc.constantFrom('LOCKED' as const, 'TERMINATED' as const, null),
    }),
  },
)

/** One history: operations are begun and not waited for, and any way to fail but a refusal that has a code is a defect. */
class History {
  readonly device: SessionDevice
  readonly defects: string[] = []
  readonly #ids: string[] = []

  constructor(device: SessionDevice) {
    this.device = device
  }

  async make(move: Move): Promise<void> {
    const { device } = this
    switch (move.kind) {
      case 'open':
        this.#watch(device.open().then((id) => void this.#ids.push(id)))
        return
      case 'request':
        for (const session of move.sessions)
          this.#watch(device.request(this.#idOf({ session }), move.count, { rollbackOnDeny: move.keep }))
        return
      case 'halt':
        this.#watch(device.request(this.#idOf(move), 0))
        return
      case 'heartbeat':
        this.#watch(device.heartbeat(this.#idOf(move)))
        return
      case 'close':
        this.#watch(device.close(this.#idOf(move)))
        return
      case 'order':
        device.sessions.applyCommands([{ id: this.#idOf(move), command: move.order }], () => undefined)
        return
      case 'pass':
        return device.pass(move.ms)
      case 'steps':
        for (let step = 0; step < move.count; step += 1) await Promise.resolve()
        return
      case 'turn':
        await new Promise((resolve) => setImmediate(resolve))
        return
      case 'disk-full':
        device.disk.refusals = move.commits
        return
      case 'power-cut':
        return device.restart(move.ms)
      case 'fence':
        return this.#fence()
      case 'grant':
        return device.grant(move.tokens * TOKEN)
      case 'one-off':
        this.#watch(device.oneOff(move.count))
        return
      case 'connection':
        device.connected = move.isUp
        return
      case 'suspension':
        device.activePolicies.suspension =
          move.state === null ? null : { state: move.state, since: device.time.truth() }
        return
    }
  }

  async #fence(): Promise<void> {
    const { device } = this
    const isRecorded = device.disk.refusals === 0
    await device.ledger.freeze()
    await device.settle()
    const isTerminated = device.activePolicies.suspension?.state === 'TERMINATED'
    if (isTerminated && isRecorded && device.sessions.list(() => true).length > 0)
      this.defects.push('a session of a terminated device is live in the next epoch')
    await device.beginEpoch()
    await device.grant(10n * TOKEN)
  }

  #idOf({ session }: { readonly session: number }): string {
    return this.#ids[session % this.#ids.length] ?? ''
  }

  #watch(operation: Promise<unknown>): void {
    operation.catch((error: unknown) => {
      if (!(error instanceof CodedError)) this.defects.push(String(error))
    })
  }
}

/** @param cap how much an essential line item may owe; 0n for one that is not */
function audit({ device, defects }: History, cap: bigint): void {
  expect({ fatal: device.fatal.map(String), defects }).toEqual({ fatal: [], defects: [] })
  expect(device.warned.length).toBeLessThanOrEqual(WARNINGS_MAX)
  device.billed()
  const held = new Map(device.ledger.accounts()).get(LINE)
  const stored = device.disk.read().accounts.get(LINE)
  expect({ used: held?.used, refunded: held?.refunded }).toEqual({ used: stored?.used, refunded: stored?.refunded })
  if (stored !== undefined) expect(-available(stored)).toBeLessThanOrEqual(cap)
  const chargedBy = new Map<string, bigint>()
  for (const { kind, session, postings } of device.disk.history) {
    if (session === undefined) continue
    const amount = postings.reduce((sum, posting) => sum + posting.amount, 0n)
    if (kind === 'refund') {
      expect(amount).toBeLessThanOrEqual(chargedBy.get(session.id) ?? 0n)
      chargedBy.set(session.id, 0n)
    } else if (amount > 0n) chargedBy.set(session.id, amount)
  }
}

test(`${RUNS} random histories of sessions`, { timeout: 300_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(move, { minLength: 5, maxLength: 60 }), cap, async (moves, cap) => {
      const history = new History(await SessionDevice.make(20))
      const { device } = history
      if (cap > 0n) device.activePolicies.put(await essentialRules(2, cap))
      for (let opened = 0; opened < SESSIONS_AT_FIRST; opened += 1) {
        await history.make({ kind: 'open' })
        await device.settle()
      }
      try {
        for (const each of moves) await history.make(each)
        device.disk.refusals = 0
        await device.settle()
        await device.pass(1_000)
        audit(history, cap)
      } finally {
        device.kill()
      }
    }),
    { numRuns: RUNS },
  )
})
