/**
 * Audits a closed journal file: whole pages, unbroken chain, correct counters, no spending above grants, consecutive
 * segments. Shares no arithmetic with the agent.
 */
import Database from 'better-sqlite3'
import { z } from 'zod'
import { entriesBetween } from '../../src/agent/platform/sqlite/entry-blocks.ts'
import { foldDatabase } from '../../src/agent/platform/sqlite/pending-batches.ts'
import { CHAIN_START, sha256, unverifiedText } from '../../src/protocol/signing.ts'
import { AuditError, hold, Ledger, Sums } from './ledger.ts'

interface StateRow {
  readonly epoch: bigint
  readonly fenced: bigint
  readonly last_entry: bigint
  readonly entry_head: string
  readonly sealed_entry: bigint
  readonly last_seq: bigint
  readonly segment_head: string
}

interface AccountRow {
  readonly id: string
  readonly granted: bigint
  readonly used: bigint
  readonly refunded: bigint
  readonly returned: bigint
}

const segmentPayload = z.object({
  epoch: z.int(),
  seq: z.int(),
  previousHash: z.string(),
  entries: z.object({ first: z.int(), bodies: z.array(z.string()) }),
})

export class DeviceAudit {
  readonly ledger = new Ledger()
  readonly #segments = new Map<number, string>()
  readonly #epoch: number
  readonly #used = new Sums()
  #summed = 0
  #lastSeq = 0
  #segmentHead = CHAIN_START

  /** @param epoch the only one in which the device has recorded anything */
  constructor(epoch = 1) {
    this.#epoch = epoch
  }

  /**
   * Continues where the last call ended, and checks the whole file.
   * @param file of the journal, opened for writing to recover its log
   * @returns the number of entries
   * @throws AuditError
   */
  read(file: string): number {
    const database = open(file)
    try {
      this.#read(database)
      return this.ledger.size
    } finally {
      database.close()
    }
  }

  /** @param document if given, the segment must be equal */
  hasSealed(seq: number, document?: string): boolean {
    const sealed = this.#segments.get(seq)
    return document === undefined ? sealed !== undefined : sealed === document
  }

  #read(database: Database.Database): void {
    const result = database.pragma('integrity_check(1)', { simple: true })
    hold(result === 'ok', `the journal's pages: ${String(result)}`)
    foldDatabase(database)
    const state = database.prepare('SELECT * FROM state').get() as StateRow
    const isExpected = state.epoch === 0n || Number(state.epoch) === this.#epoch
    hold(state.fenced === 0n && isExpected, `epoch ${state.epoch} is fenced, or not ${this.#epoch}`)
    this.#readSegments(database, state)
    this.#readEntries(database, state)
    this.#checkAccounts(database)
  }

  #readSegments(database: Database.Database, state: StateRow): void {
    const rows = database
      .prepare(
        'SELECT seq, hash, document FROM segment JOIN segment_document USING (id) WHERE epoch = ? AND seq > ? ORDER BY seq',
      )
      .all(this.#epoch, this.#lastSeq) as { seq: bigint; hash: string; document: string }[]
    for (const { seq, hash, document } of rows) {
      const text = unverifiedText(document) ?? ''
      const payload = segmentPayload.parse(JSON.parse(text))
      hold(payload.seq === Number(seq) && payload.seq === this.#lastSeq + 1, `segment ${seq} follows ${this.#lastSeq}`)
      hold(payload.previousHash === this.#segmentHead, `segment ${seq} does not fit the one before`)
      hold(sha256(text) === hash, `segment ${seq} has another hash`)
      for (const [index, body] of payload.entries.bodies.entries()) {
        const n = payload.entries.first + index
        if (n > this.ledger.size) this.ledger.take(body)
      }
      this.#segments.set(payload.seq, document)
      this.#lastSeq = payload.seq
      this.#segmentHead = hash
    }
    hold(Number(state.last_seq) === this.#lastSeq, `the last segment is ${this.#lastSeq}, not ${state.last_seq}`)
    hold(state.segment_head === this.#segmentHead, 'the chain of segments has another head')
    const inFlight = database.prepare("SELECT count(*) FROM segment WHERE state = 'UNACKNOWLEDGED'").pluck().get()
    hold(Number(inFlight) <= 1, `${String(inFlight)} segments are in flight`)
  }

  #readEntries(database: Database.Database, state: StateRow): void {
    const counted = this.ledger.size
    for (const { body } of entriesBetween(database, BigInt(counted), 2n ** 63n - 1n)) this.ledger.take(body)
    hold(this.ledger.size === Number(state.last_entry), `${this.ledger.size} entries, not ${state.last_entry}`)
    hold(this.ledger.head === state.entry_head, 'the chain of entries has another head')
    hold(state.sealed_entry <= state.last_entry, 'more is sealed than recorded')
    for (const entry of this.ledger.after(this.#summed)) this.#used.add(entry)
    this.#summed = this.ledger.size
  }

  #checkAccounts(database: Database.Database): void {
    const rows = database.prepare('SELECT id, granted, used, refunded, returned FROM account').all() as AccountRow[]
    const known = new Set(rows.map(({ id }) => id))
    for (const account of this.#used.accounts()) hold(known.has(account), `there is no account ${account}`)
    for (const { id, granted, used, refunded, returned } of rows) {
      hold(refunded === 0n, `${id} has a refund that no application requested`)
      hold(used === this.#used.of(id), `${id}: used is ${used}, the entries say ${this.#used.of(id)}`)
      hold(used - refunded + returned <= granted, `${id} is overspent`)
    }
  }
}

function open(file: string): Database.Database {
  try {
    const database = new Database(file, { fileMustExist: true })
    database.defaultSafeIntegers(true)
    // The only user: reading the log needs no shared memory.
    database.pragma('locking_mode = EXCLUSIVE')
    return database
  } catch (cause) {
    throw new AuditError(`the journal cannot be opened: ${String(cause)}`, { cause })
  }
}
