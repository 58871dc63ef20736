/** Commits no sale that the mark cannot show, or on a database that counts less. See docs/decisions/sales-mark.md. */
import { ENGINE } from '../../../core/engine.ts'
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { Recovery, SalesMarkRecord } from '../../storage/device-records.ts'
import type { Policies } from '../../policy/load-policy.ts'
import type { Pool } from '../../storage/records.ts'
import type { Store, Transaction } from '../../storage/store.ts'
import { watchPools, withTransactions } from '../../storage/with-transactions.ts'
import { type Comparison, compare, poolsOf } from './compare.ts'
import type { MarkFile } from './mark-file.ts'
import { beginRecovery } from './recovery.ts'
import { SalesMark } from './sales-mark.ts'

export interface SalesDeps {
  readonly store: Store
  readonly file: MarkFile
  readonly policies: Pick<Policies, 'of'>
  readonly shared: boolean
  readonly restored: boolean
  readonly now: () => number
  readonly newId: () => string
  readonly pause: (ms: number) => Promise<unknown>
  readonly onRecovery: (reason: string) => void
  readonly onBroken: (error: unknown) => void
}

/** Nodes of one database find copied marks by their turns. A single node's turns show that a database is older, also if nothing was sold. */
export const TURN_EVERY_MS = { shared: 2_000, alone: 60_000 } as const

/** How long, and how often, a start looks for another node that works with this database. */
const PEER_WAIT_MS = 5_000
const PEER_LOOK_MS = 250

const PEER_FORGOTTEN_MS = 30 * 24 * 60 * 60_000

const RUNS_MAX = 3

/** The database counts less than the mark: it was replaced while the node ran. */
class DatabaseOlder extends Error {}

export class Sales {
  readonly store: Store
  readonly #deps: SalesDeps
  readonly #started = Promise.withResolvers<SalesMark>()
  #mark: SalesMark | undefined
  #recovering: Promise<void> | undefined

  constructor(deps: SalesDeps) {
    this.#deps = deps
    this.store = withTransactions(deps.store, (work) => this.#transaction(work))
    this.#started.promise.catch(() => undefined)
  }

  /** Compares mark and database. @throws CodedError NOT_RECORDED, STATE_UNWRITABLE, and the errors of the store */
  async start(): Promise<void> {
    try {
      this.#mark = await this.#open()
      this.#started.resolve(this.#mark)
    } catch (error) {
      this.#started.reject(error)
      throw error
    }
  }

  async flush(): Promise<void> {
    try {
      await this.#mark?.flushLater(this.#deps.now())
    } catch (error) {
      this.#deps.onBroken(error)
    }
  }

  async turn(): Promise<void> {
    const mark = this.#mark
    if (mark === undefined) return
    const { store, now } = this.#deps
    // However slow the disk is, the mark must not fall further behind than a power cut may leave it.
    await mark.flushLater(now())
    const records = await store.read((reader) => reader.edge.salesMarks.list())
    const own = records.find(({ id }) => id === mark.id)
    if (own !== undefined && own.turn > mark.turn + 1) {
      throw new CodedError('STATE_IN_USE', 'Another node works with a copy of the sales mark of this one.')
    }
    // The response to the last turn may be lost, or it could not be written. The database must not get further ahead.
    if (own !== undefined && own.turn > mark.turn) mark.turned(own.turn, now(), mark.peers)
    const counts = (id: string, turn: number) =>
      store.transaction(async (tx) => ((await tx.edge.salesMarks.turn(id, turn, now())) ? tx.usage.end() : null))
    const end = own === undefined || own.turn < mark.turn ? null : await counts(own.id, own.turn)
    if (own === undefined || end === null) {
      await this.#recoverIfOlder(mark)
      return
    }
    const others = records.filter(({ id }) => id !== mark.id).map(({ id }) => id)
    mark.turned(own.turn + 1, now(), others, end)
    if (own.awaited) await store.transaction((tx) => this.#show(tx, mark.id))
    if (records.some(({ accepted }) => !accepted)) await store.transaction((tx) => tx.edge.salesMarks.acceptAll())
  }

  close(): void {
    this.#mark?.close(this.#deps.now())
    this.#mark = undefined
  }

  async #transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    const mark = await this.#started.promise
    for (let run = 1; ; run += 1) {
      const sold = new Map<AccountId, Pool>()
      const named = { position: 0n }
      try {
        const result = await this.#deps.store.transaction(async (tx) => {
          sold.clear()
          named.position = 0n
          const result = await work(watched(tx, mark, sold, named))
          mark.reserve(sold.values())
          return result
        })
        mark.note(sold.values())
        mark.name(named.position)
        return result
      } catch (error) {
        if (!(error instanceof DatabaseOlder) || run >= RUNS_MAX) throw error
        await this.#recoverIfOlder(mark)
      }
    }
  }

  async #open(): Promise<SalesMark> {
    const { store, file, shared, restored, now } = this.#deps
    const found = SalesMark.read(file)
    const records = await store.read((reader) => reader.edge.salesMarks.list())
    if (typeof found === 'string') return this.#begin(found === 'DAMAGED' ? 'is damaged' : 'is missing', records)
    const own = records.find(({ id }) => id === found.id)
    const comparison = await compare(store, found, shared)
    const mayBeCopied = shared && (found.isElsewhere || comparison.result === 'MARK_OLDER')
    const isInUse = (record: SalesMarkRecord): boolean => record.id === own?.id && record.turn > own.turn
    if (mayBeCopied && own !== undefined && (await this.#awaitRecord(isInUse))) {
      return this.#begin('is a copy of that of another node', records)
    }
    if (restored || comparison.result !== 'AGREES') await this.#recover(found, comparison)
    else await this.#join(found)
    const pools = await store.read((reader) => poolsOf(reader, found))
    found.start(pools.values(), found.turn + 1, now())
    return found
  }

  /** Starts without a reliable mark: needs a database with nothing to lose, or other nodes. */
  async #begin(what: string, records: readonly SalesMarkRecord[]): Promise<SalesMark> {
    const { store, file, shared, restored, now, newId } = this.#deps
    const mark = SalesMark.begin(file, newId(), now())
    const record = { id: mark.id, turn: 1, seenAt: now(), awaited: false, accepted: records.length === 0 }
    await store.transaction((tx) => tx.edge.salesMarks.save(record))
    const isFirst = records.length === 0
    // Another node, with a mark that fits the database, accepts this one.
    const isAccepted = (each: SalesMarkRecord): boolean => each.id === mark.id && each.accepted
    if (restored || !(isFirst || (shared && (await this.#awaitRecord(isAccepted))))) {
      const reason =
        restored && isFirst ? 'store.restored is set, and there is no sales mark.' : `The sales mark ${what}.`
      await this.#recover(mark, { reason, sold: new Map(), unknown: true })
    }
    mark.start([], 1, now())
    return mark
  }

  async #awaitRecord(fits: (record: SalesMarkRecord) => boolean): Promise<boolean> {
    const { store, pause } = this.#deps
    for (let waited = 0; ; waited += PEER_LOOK_MS) {
      const records = await store.read((reader) => reader.edge.salesMarks.list())
      if (records.some(fits)) return true
      if (waited >= PEER_WAIT_MS) return false
      await pause(PEER_LOOK_MS)
    }
  }

  /** The mark fits the database. If a recovery by another node waits for this mark, it is now shown. */
  async #join(mark: SalesMark): Promise<void> {
    const { store, now } = this.#deps
    await store.transaction(async (tx) => {
      const records = await tx.edge.salesMarks.list()
      if (records.some(({ id, awaited }) => id === mark.id && awaited)) await this.#show(tx, mark.id)
      await tx.edge.salesMarks.save({
        id: mark.id,
        turn: mark.turn + 1,
        seenAt: now(),
        awaited: false,
        accepted: true,
      })
      // By a clock that is ahead, nodes at work would be forgotten, and take the database for a backup.
      const at = Math.min(now(), (await tx.sweeps.databaseTime()) ?? Infinity)
      await tx.edge.salesMarks.forget(at - PEER_FORGOTTEN_MS)
    })
  }

  /** The mark's sales are in the database. If it was the last one awaited, the rest is proven unsold. */
  async #show(tx: Transaction, id: string): Promise<void> {
    const { now } = this.#deps
    await tx.policyRevisions.lockAll()
    const records = await tx.edge.salesMarks.list()
    const own = records.find((record) => record.id === id)
    if (own !== undefined) await tx.edge.salesMarks.save({ ...own, awaited: false })
    if (records.some(({ id: other, awaited }) => other !== id && awaited)) return
    await tx.edge.recoveries.proveAll()
    // Cached rules must learn that selling is permitted.
    await tx.policyRevisions.bumpAll(now(), ENGINE.version)
    await tx.outbox.appendPolicies(now())
  }

  async #recover(
    mark: SalesMark,
    { reason, sold, unknown }: Pick<Comparison, 'reason' | 'sold' | 'unknown'>,
  ): Promise<void> {
    const { store, policies, shared, now, onRecovery } = this.#deps
    const why = reason ?? 'store.restored is set.'
    const end = await store.transaction(async (tx) => {
      const records = await tx.edge.salesMarks.list()
      const others = new Set([...mark.peers, ...records.map(({ id }) => id)])
      others.delete(mark.id)
      // An unshared database has one mark: others are gone.
      if (!shared) others.clear()
      const unproven: Recovery['unproven'] = unknown ? 'MARK' : others.size > 0 ? 'NODE' : null
      const { position, at: until } = mark
      const isJoined = records.some(({ id, awaited }) => id === mark.id && awaited)
      await beginRecovery(tx, policies, { sold, unproven, position, isJoined, until, reason: why }, now())
      const seen = { seenAt: now(), accepted: true }
      await tx.edge.salesMarks.save({ id: mark.id, turn: mark.turn + 1, awaited: false, ...seen })
      for (const id of others) {
        const turn = records.find((record) => record.id === id)?.turn ?? 0
        await tx.edge.salesMarks.save({ id, turn, awaited: true, ...seen })
      }
      return tx.usage.end()
    })
    mark.name(end)
    onRecovery(why)
  }

  async #recoverIfOlder(mark: SalesMark): Promise<void> {
    this.#recovering ??= (async () => {
      const { store, shared, now } = this.#deps
      const comparison = await compare(store, mark, shared)
      if (comparison.result === 'AGREES') return
      await this.#recover(mark, comparison)
      mark.turned(mark.turn + 1, now(), mark.peers)
    })().finally(() => {
      this.#recovering = undefined
    })
    return this.#recovering
  }
}

/** Collects a transaction's sales; fails it if the database counts less than the mark. */
function watched(
  tx: Transaction,
  mark: SalesMark,
  sold: Map<AccountId, Pool>,
  named: { position: bigint },
): Transaction {
  const before = new Map<AccountId, Micro>()
  const onLocked = (pool: Pool): void => {
    if (pool.sold < mark.soldOf(pool.account)) throw new DatabaseOlder(pool.account)
    before.set(pool.account, pool.sold)
  }
  const onSaved = (pool: Pool): void => {
    if (pool.sold > (before.get(pool.account) ?? 0n)) sold.set(pool.account, pool)
  }
  return {
    ...watchPools(tx, onLocked, onSaved),
    usage: {
      ...tx.usage,
      async settled() {
        const position = await tx.usage.settled()
        if (position < mark.position) throw new DatabaseOlder('usage')
        if (position > named.position) named.position = position
        return position
      },
    },
  }
}
