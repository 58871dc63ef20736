/**
 * Sessions that devices keep, by their entries: each interval is charged once, and the part of it that was not used is
 * refunded once, to the epoch that paid it.
 */
import { Books } from './books.ts'
import { type Interval, unused } from './cloud-sessions.ts'
import type { PublishedAudit } from './published.ts'
import type { EntryText } from './records.ts'
import type { SharedState } from './shared-state.ts'
import { Violation } from './violation.ts'

interface PaidInterval extends Interval {
  readonly lengthMs: bigint
  /** The device and the epoch that paid it. */
  readonly paidBy: string
}

/** Events after which the rest of the interval is refunded. A refusal keeps the interval or ends the session. */
const REFUNDED: ReadonlySet<string> = new Set([
  'GRANTED',
  'HALTED',
  'RENEWED',
  'NOT_RENEWED',
  'HEARTBEAT_MISSED',
  'CLOSED',
  'SUSPENDED',
])

const CHARGES: ReadonlySet<string> = new Set(['GRANTED', 'RENEWED'])

export class DeviceSessionAudit {
  readonly #shared: SharedState
  readonly #published: PublishedAudit
  /** By machine and session. */
  readonly #intervals = new Map<string, PaidInterval>()

  constructor(shared: SharedState, published: PublishedAudit) {
    this.#shared = shared
    this.#published = published
  }

  /** The machine's disk has another content. */
  forget(machine: string): void {
    for (const name of this.#intervals.keys()) if (name.startsWith(`${machine} `)) this.#intervals.delete(name)
  }

  /** A durable entry, in their sequence. @param owner the device and its epoch */
  appended(machine: string, owner: string, body: EntryText): void {
    const { session, kind, earliest } = body
    if (session === undefined) return
    const name = `${machine} ${session.id}`
    const paid = this.#intervals.get(name)
    const { event } = session
    if (kind !== 'refund' && !REFUNDED.has(event)) return
    if (paid !== undefined) this.#checkRefund(name, owner, paid, kind === 'refund' ? body : { ...body, items: [] })
    const next = kind === 'refund' ? undefined : this.#nextOf(name, owner, paid, body)
    if (next !== undefined) this.#intervals.set(name, next)
    else if (paid === undefined) return
    // The next entry is the charge that replaces it.
    else if (kind === 'refund' && CHARGES.has(event)) this.#intervals.set(name, { ...paid, charged: new Books() })
    else if (event === 'SUSPENDED') {
      const at = clamp(BigInt(earliest), paid)
      this.#intervals.set(name, { ...paid, from: at, until: at, charged: new Books() })
    } else this.#intervals.delete(name)
  }

  #checkRefund(
    name: string,
    owner: string,
    paid: PaidInterval,
    { session, earliest, items }: Pick<EntryText, 'session' | 'earliest' | 'items'>,
  ): void {
    this.#shared.look('I4')
    const back = new Books()
    for (const { metaData, total } of items) back.add(String(metaData?.at), BigInt(total))
    for (const [item, tokens] of paid.charged.entries()) {
      const all = session?.event === 'HEARTBEAT_MISSED' ? tokens : unused(tokens, paid, BigInt(earliest))
      const expected = paid.paidBy === owner ? all : 0n
      const refunded = back.get(item)
      if (refunded === expected) continue
      const event = `${session?.event} of the session ${name}`
      throw new Violation(
        refunded < expected ? 'I3' : 'I4',
        `${event} refunds ${refunded} of item ${item} instead of ${expected} of ${tokens}`,
      )
    }
  }

  /** Undefined: the event makes no charge, or its interval is unknown. */
  #nextOf(
    name: string,
    paidBy: string,
    paid: PaidInterval | undefined,
    { session, earliest, instanceId, policyRevision, items }: EntryText,
  ): PaidInterval | undefined {
    const now = BigInt(earliest)
    const charged = new Books()
    for (const { metaData, total } of items) charged.add(String(metaData?.at), BigInt(total))
    if (session?.event === 'GRANTED') {
      const intervalMs = this.#published.sessionIntervalMs(instanceId, policyRevision)
      if (intervalMs === undefined) return undefined
      const lengthMs = BigInt(intervalMs)
      return { from: now, until: now + lengthMs, lengthMs, paidBy, charged }
    }
    if (session?.event !== 'RENEWED' || paid === undefined) return undefined
    const { lengthMs } = paid
    if (now >= paid.until) {
      const from = paid.until + ((now - paid.until) / lengthMs) * lengthMs
      return { from, until: from + lengthMs, lengthMs, paidBy, charged }
    }
    if (now >= paid.from - lengthMs) {
      throw new Violation('I4', `the session ${name} is charged again at ${now}, paid until ${paid.until}`)
    }
    return { from: now, until: now + lengthMs, lengthMs, paidBy, charged }
  }
}

function clamp(at: bigint, { from, until }: Interval): bigint {
  if (at < from) return from
  return at < until ? at : until
}
