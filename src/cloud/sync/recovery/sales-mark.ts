/**
 * A node's sales per account, outside the database. `sold` is written after each commit and flushed within a second;
 * `reserved` is flushed before a sale exceeds it. See docs/decisions/sales-mark.md.
 */
import { createHash } from 'node:crypto'
import { type AccountId, isLimitAccount } from '../../../core/accounts/account.ts'
import { MICRO_MAX, type Micro } from '../../../core/pricing/amount.ts'
import type { Pool } from '../../storage/records.ts'
import { type MarkFile, SLOT_TEXT_MAX } from './mark-file.ts'

/** Maximum of line item and allocation accounts, and also of consumption limits; keeps the file within 16 MiB. */
export const ACCOUNTS_MAX = 16_384

const PEERS_MAX = 10

const FIRST_STEP_PART = 64n
const LAST_STEP_PART = 8n

/** Without a cap, micro-tokens. */
const STEP_MIN = 64_000_000n
const STEP_MAX = 1_000_000_000_000n

const HEADER_SLOT = 0
const PEERS_SLOT = 1
const FIRST_ACCOUNT_SLOT = 2

interface Header {
  readonly id: string
  /** The database's turn, or one or two behind. */
  readonly turn: number
  readonly place: string
  readonly bootId: string | null
  readonly closed: boolean
  readonly position: string
  readonly at: number
  readonly dropped: boolean
}

interface Kept {
  readonly slot: number
  readonly sold: Micro
  readonly reserved: Micro
  readonly step: Micro
}

/** Least recently sold first. */
type Shelf = Map<string, Kept>

export interface Count {
  readonly name: string
  /** The database must count at least this. */
  readonly sold: Micro
  /** This node has never sold beyond this. */
  readonly reserved: Micro
  /** The lowest proven upper bound of this node's sales. */
  readonly atMost: Micro
}

export class SalesMark {
  readonly #file: MarkFile
  readonly #shelves: Readonly<Record<'pools' | 'limits', Shelf>> = { pools: new Map(), limits: new Map() }
  readonly #unused: number[] = []
  readonly #owed = new Set<string>()
  #header: Header
  #peers: readonly string[]
  #slots: number
  #isExact: boolean
  #isFlushed = true
  #flushing: Promise<void> = Promise.resolve()

  private constructor(file: MarkFile, header: Header, peers: readonly string[], slots: number) {
    this.#file = file
    this.#header = header
    this.#peers = peers
    this.#slots = slots
    this.#isExact = header.closed || (header.bootId !== null && header.bootId === file.bootId)
  }

  static read(file: MarkFile): SalesMark | 'MISSING' | 'DAMAGED' {
    const slots = file.read()
    if (typeof slots === 'string') return slots
    try {
      const header = JSON.parse(slots[HEADER_SLOT] ?? '') as Header
      const peers = JSON.parse(slots[PEERS_SLOT] ?? '') as string[]
      const mark = new SalesMark(file, header, peers, slots.length)
      for (const [slot, text] of slots.entries()) if (slot >= FIRST_ACCOUNT_SLOT) mark.#take(slot, text)
      return mark
    } catch {
      return 'DAMAGED'
    }
  }

  static begin(file: MarkFile, id: string, at: number): SalesMark {
    file.begin()
    const header: Header = {
      id,
      turn: 0,
      place: file.place(),
      bootId: file.bootId,
      closed: false,
      position: '0',
      at,
      dropped: false,
    }
    const mark = new SalesMark(file, header, [], FIRST_ACCOUNT_SLOT)
    mark.#isExact = true
    mark.#write({}, [])
    mark.flush()
    return mark
  }

  #take(slot: number, text: string): void {
    if (text === '') {
      this.#unused.push(slot)
      return
    }
    const [account = '', sold = '', reserved = '', step = ''] = text.split(' ')
    this.#shelfOf(account).set(account, { slot, sold: BigInt(sold), reserved: BigInt(reserved), step: BigInt(step) })
  }

  get id(): string {
    return this.#header.id
  }

  get turn(): number {
    return this.#header.turn
  }

  get position(): bigint {
    return BigInt(this.#header.position)
  }

  get at(): number {
    return this.#header.at
  }

  get peers(): readonly string[] {
    return this.#peers
  }

  get isElsewhere(): boolean {
    return this.#header.place !== this.#file.place()
  }

  /** Every account sold from is counted here, apart from consumption limits. */
  get isComplete(): boolean {
    return !this.#header.dropped
  }

  *counts(): Generator<Count> {
    for (const shelf of Object.values(this.#shelves)) {
      for (const [name, { sold, reserved }] of shelf)
        yield { name, sold, reserved, atMost: this.#isExact ? sold : reserved }
    }
  }

  soldOf(account: AccountId): Micro {
    return this.#find(markName(account))?.sold ?? 0n
  }

  /** Starts using this mark. @param pools all accounts of the mark that the database has */
  start(pools: Iterable<Pool>, turn: number, at: number): void {
    const known = new Map([...pools].map((pool) => [markName(pool.account), pool]))
    for (const shelf of Object.values(this.#shelves)) {
      for (const [name, { slot }] of shelf) {
        if (known.has(name)) continue
        this.#file.write(slot, '')
        this.#unused.push(slot)
        shelf.delete(name)
      }
    }
    this.note(known.values())
    this.#isExact = true
    this.#write({ turn, at, closed: false, bootId: this.#file.bootId, place: this.#file.place() })
    this.flush()
  }

  /** @param end position up to which the database has usage records */
  turned(turn: number, at: number, peers: readonly string[], end = 0n): void {
    this.#write({ turn, at, position: String(end > this.position ? end : this.position) }, peers.slice(-PEERS_MAX))
  }

  /** Called before the commit of these pools' sales. @throws CodedError NOT_RECORDED: nothing may be sold */
  reserve(pools: Iterable<Pool>): void {
    for (const account of this.#owed) {
      const kept = this.#find(account)
      if (kept !== undefined) this.#file.write(kept.slot, slotText(account, kept))
      this.#owed.delete(account)
    }
    const reserved: (readonly [string, Kept])[] = []
    for (const pool of pools) {
      const account = markName(pool.account)
      const before = this.#find(account)
      if (before !== undefined && pool.sold <= before.reserved) continue
      const step = nextStep(pool, before)
      const most = pool.sold > MICRO_MAX - step ? MICRO_MAX : pool.sold + step
      const slot = before?.slot ?? this.#slotFor(account)
      const kept: Kept = { slot, sold: before?.sold ?? 0n, reserved: most, step }
      this.#file.write(slot, slotText(account, kept))
      reserved.push([account, kept])
    }
    if (reserved.length === 0) return
    this.#file.flush()
    this.#isFlushed = true
    for (const [account, kept] of reserved) this.#shelfOf(account).set(account, kept)
  }

  /** Called after the commit, before any response. */
  note(pools: Iterable<Pool>): void {
    for (const pool of pools) {
      const account = markName(pool.account)
      const before = this.#find(account)
      if (before === undefined || pool.sold <= before.sold) continue
      const kept = { ...before, sold: pool.sold }
      const shelf = this.#shelfOf(account)
      shelf.delete(account)
      shelf.set(account, kept)
      this.#isFlushed = false
      try {
        this.#file.write(kept.slot, slotText(account, kept))
      } catch {
        // The sale is within the reservation. Nothing more is sold before this can be written.
        this.#owed.add(account)
      }
    }
  }

  /**
   * Called before a position of usage records is exported, and when a restored database has passed what it lost.
   * @throws CodedError NOT_RECORDED
   */
  name(position: bigint): void {
    if (position <= this.position) return
    this.#write({ position: String(position) })
    this.flush()
  }

  flush(): void {
    this.#file.flush()
    this.#isFlushed = true
  }

  async flushLater(at: number): Promise<void> {
    if (!this.#isFlushed) {
      this.#write({ at })
      this.#isFlushed = true
      this.#flushing = this.#file.flushLater()
    }
    await this.#flushing
  }

  close(at: number): void {
    if (this.#owed.size > 0) return
    this.flush()
    this.#write({ closed: true, at })
    this.flush()
  }

  #write(change: Partial<Header>, peers: readonly string[] = this.#peers): void {
    const header = { ...this.#header, ...change }
    this.#file.write(HEADER_SLOT, JSON.stringify(header))
    if (peers !== this.#peers || this.#slots === FIRST_ACCOUNT_SLOT) this.#file.write(PEERS_SLOT, JSON.stringify(peers))
    this.#header = header
    this.#peers = peers
    this.#isFlushed = false
  }

  #find(name: string): Kept | undefined {
    return this.#shelfOf(name).get(name)
  }

  #shelfOf(name: string): Shelf {
    return this.#shelves[isLimitAccount(name) ? 'limits' : 'pools']
  }

  #slotFor(name: string): number {
    const shelf = this.#shelfOf(name)
    if (shelf.size < ACCOUNTS_MAX) return this.#unused.pop() ?? this.#slots++
    const [oldest] = shelf
    if (oldest === undefined) throw new Error('invariant: a full shelf has an oldest account')
    const [dropped, { slot }] = oldest
    if (shelf === this.#shelves.pools && !this.#header.dropped) this.#write({ dropped: true })
    shelf.delete(dropped)
    return slot
  }
}

function slotText(name: string, { sold, reserved, step }: Kept): string {
  return `${name} ${sold} ${reserved} ${step}`
}

/** Beside it, three counts of 19 digits, with spaces. */
const NAME_MAX = SLOT_TEXT_MAX - 60

/** An account's name in a mark; an id too long for a slot is replaced by kind, instance and hash. */
export function markName(account: AccountId): string {
  if (account.length <= NAME_MAX) return account
  const [kind, instanceId] = account.split('/')
  return `${kind}/${instanceId}/#${createHash('sha256').update(account).digest('hex')}`
}

export function isHashed(name: string): boolean {
  return name.includes('/#')
}

function nextStep({ capTarget }: Pool, before: Kept | undefined): Micro {
  const [first, last] =
    capTarget === null ? [STEP_MIN, STEP_MAX] : [capTarget / FIRST_STEP_PART, capTarget / LAST_STEP_PART]
  const doubled = 2n * (before?.step ?? 0n)
  const step = doubled > first ? doubled : first
  return step < last ? step : last
}
