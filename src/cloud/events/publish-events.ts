/** Sends the events of one sink in order. A lease lets one node send at a time. See docs/explanation/events.md. */
import { usageArchivedError } from '../usage/export-usage.ts'
import { grouped } from '../../core/accounts/in-words.ts'
import { CodedError, messageOf } from '../../protocol/errors.ts'
import { DEAD_LETTERS_MAX, type DeadLetter, type SinkLease } from '../storage/records.ts'
import type { Reader, Store } from '../storage/store.ts'
import { type OutgoingEvent, changeEvent, groupOf, usageEvent } from './outgoing-event.ts'
import { BATCH_TIMEOUT_MS, EventsRejected, SinkUnavailable, type Sink } from './sink.ts'
import type { Log } from '../../protocol/log.ts'

export interface PublisherDeps {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly sink: Sink
  readonly tenantId: string
  /** Unique for each run of a node that shares the store: a lease belongs to one id. */
  readonly nodeId: string
  readonly now: () => number
  readonly fraction: () => number
  readonly log: Pick<Log, 'info' | 'warn'>
  readonly watcher: EventWatcher
}

export interface EventWatcher {
  eventsDelivered(sink: string, count: number): void
  eventRejected(sink: string): void
  /** Also called at the start, before anything is sent. */
  sinkFailing(sink: string, failing: boolean): void
}

/** Longer than the slowest batch, ms: one lease serves several fast ones. */
const LEASE_MS = 30_000

/** Events of each kind in memory. A row of the store comes whole, so there can be more. */
const EVENTS_READ = 500

const BATCH_BYTES_MAX = 512 * 1_024

/** After so many rejections, an event is a dead letter. */
const ATTEMPTS_MAX = 3

const NO_REJECTIONS = { position: 0n, count: 0 }

const BACKOFF_BASE_MS = 1_000
const BACKOFF_CAP_MS = 5 * 60_000

interface Chunk {
  readonly after: bigint
  readonly events: readonly OutgoingEvent[]
  readonly end: bigint
}

export class EventPublisher {
  readonly #deps: PublisherDeps
  readonly #stopping = new AbortController()
  #chunk: Chunk | null = null
  /** End of the lease by this node's clock. */
  #leasedUntil = Number.NEGATIVE_INFINITY
  /** End of a pause from before the start of this node; undefined: not read yet. */
  #pauseBefore: number | null | undefined
  #isFailing = false
  #failures = 0
  #failedAt = 0
  #pauseMs = 0
  /** Events per call: half as many after an outage, because a slow receiver may take fewer in time. */
  #batchMax = Number.POSITIVE_INFINITY
  /** Events up to this position are sent one by one: the sink has rejected one of them. */
  #singlyUpTo = 0n
  /** Of the event at this position. */
  #rejections = NO_REJECTIONS

  constructor(deps: PublisherDeps) {
    this.#deps = deps
    deps.watcher.sinkFailing(deps.sink.name, false)
  }

  /** Sends some events. Returns whether there may be more to do now. */
  async step(): Promise<boolean> {
    if (this.#stopping.signal.aborted || this.#isPausing()) return false
    if ((this.#chunk === null || this.#isFailing) && !(await this.#isDue())) return false
    try {
      return await this.#sendSome()
    } catch (error) {
      // The cursor did not move, or is unknown.
      this.#chunk = null
      this.#pause()
      throw error
    }
  }

  /** Cuts a call in progress; its events are sent again. */
  stop(): void {
    this.#stopping.abort()
  }

  /** Lets another node continue at once. Call it between steps. */
  async release(): Promise<void> {
    const { store, sink, nodeId } = this.#deps
    if (this.#leasedUntil === Number.NEGATIVE_INFINITY) return
    this.#leasedUntil = Number.NEGATIVE_INFINITY
    this.#chunk = null
    await store.transaction((tx) => tx.eventSinks.release(sink.name, nodeId))
  }

  #isPausing(): boolean {
    const passed = this.#deps.now() - this.#failedAt
    // A clock that went back ends the pause.
    return passed >= 0 && passed < this.#pauseMs
  }

  /** Whether there is something to send, and the pause after a failed attempt of any node has ended. */
  async #isDue(): Promise<boolean> {
    const { store, sink, now } = this.#deps
    return store.read(async (reader) => {
      const next = await reader.eventSinks.next(sink.name)
      if (next === null) return true
      const pauseMs = (next.retryAt ?? 0) - now()
      // A node that was killed did not end its pause, and its settings may have been the reason.
      if (this.#pauseBefore === undefined) this.#pauseBefore = next.retryAt
      const isSinceStart = next.retryAt !== this.#pauseBefore
      // No pause is longer: this one began when the clock was ahead.
      if (isSinceStart && pauseMs > 0 && pauseMs <= BACKOFF_CAP_MS) return false
      if (next.position < (await reader.usage.end())) return true
      return (await reader.eventSinks.nextReplayed(sink.name)) !== undefined
    })
  }

  async #sendSome(): Promise<boolean> {
    const now = this.#deps.now()
    if (this.#chunk === null || now > this.#leasedUntil - BATCH_TIMEOUT_MS) {
      const claimed = await this.#claim()
      if (claimed === null) return false
      if (claimed.replayed !== undefined) return this.#replay(claimed.replayed)
      if (this.#chunk?.after !== claimed.position) {
        const found = await this.#read(claimed.position, claimed.upTo)
        if (found instanceof CodedError) await this.#noteFailure(found.message)
        this.#chunk = found instanceof CodedError ? null : found
      }
    }
    const chunk = this.#chunk
    if (chunk === null) return false
    const batch = this.#nextBatch(chunk)
    if (batch.length === 0) return this.#moveCursor(chunk, [])
    const outcome = await this.#send(batch)
    if (outcome === 'DONE') return this.#moveCursor(chunk, batch)
    if (outcome instanceof EventsRejected) return this.#rejected(chunk, batch, outcome)
    return false
  }

  /** Null: another node has the sink. */
  async #claim(): Promise<{ position: bigint; upTo: bigint; replayed: DeadLetter | undefined } | null> {
    const { store, sink } = this.#deps
    const lease = this.#lease()
    const claimed = await store.transaction(async (tx) => {
      const position = await tx.eventSinks.claim(sink.name, lease, () => tx.usage.settled())
      if (position === null) return null
      const replayed = await tx.eventSinks.nextReplayed(sink.name)
      return { position, replayed, upTo: await tx.usage.settled() }
    })
    if (claimed === null) this.#chunk = null
    else this.#leasedUntil = lease.until
    return claimed
  }

  #lease(): SinkLease {
    const now = this.#deps.now()
    return { by: this.#deps.nodeId, now, until: now + LEASE_MS }
  }

  /** Returns the error if some of them are archived. */
  async #read(after: bigint, upTo: bigint): Promise<Chunk | CodedError> {
    try {
      return await this.#deps.store.read((reader) => readEvents(reader, this.#deps, after, upTo))
    } catch (error) {
      if (error instanceof CodedError && error.code === 'USAGE_ARCHIVED') return error
      throw error
    }
  }

  #nextBatch({ events }: Chunk): readonly OutgoingEvent[] {
    const batch: OutgoingEvent[] = []
    let bytes = 0
    for (const event of events.slice(0, Math.min(this.#batchMax, this.#deps.sink.batchMax))) {
      const isSingle = event.position <= this.#singlyUpTo
      bytes += Buffer.byteLength(event.json)
      if (batch.length > 0 && (isSingle || bytes > BATCH_BYTES_MAX)) break
      batch.push(event)
      if (isSingle) break
    }
    return batch
  }

  /** Undefined: an outage. */
  async #send(events: readonly OutgoingEvent[]): Promise<'DONE' | EventsRejected | undefined> {
    const { sink, log, watcher } = this.#deps
    try {
      await sink.send(events, this.#stopping.signal)
    } catch (error) {
      if (error instanceof EventsRejected) return error
      if (this.#stopping.signal.aborted) return undefined
      this.#batchMax = Math.ceil(events.length / 2)
      await this.#noteFailure(messageOf(error), error instanceof SinkUnavailable ? error.waitMs : 0)
      return undefined
    }
    if (this.#isFailing) log.warn({ sink: sink.name }, 'a sink takes events again')
    this.#noteSuccess()
    this.#batchMax *= 2
    watcher.eventsDelivered(sink.name, events.length)
    return 'DONE'
  }

  /** Past a batch that was delivered, or an event that becomes a dead letter. Returns that there may be more to do. */
  async #moveCursor(chunk: Chunk, batch: readonly OutgoingEvent[], rejected?: DeadLetter): Promise<boolean> {
    const { store, sink } = this.#deps
    const rest = chunk.events.slice(batch.length)
    const to = rest.length === 0 ? chunk.end : (batch.at(-1)?.position ?? chunk.after)
    this.#rejections = NO_REJECTIONS
    const lease = this.#lease()
    const moved = await store.transaction(async (tx) => {
      if (!(await tx.eventSinks.move(sink.name, lease, chunk.after, to))) return false
      if (rejected !== undefined) await tx.eventSinks.addDeadLetter(sink.name, rejected)
      return true
    })
    if (moved) this.#leasedUntil = lease.until
    this.#chunk = moved && rest.length > 0 ? { after: to, events: rest, end: chunk.end } : null
    return true
  }

  async #rejected(chunk: Chunk, batch: readonly OutgoingEvent[], { message }: EventsRejected): Promise<boolean> {
    const { store, sink, log, watcher, now } = this.#deps
    const [event] = batch
    if (batch.length > 1 || event === undefined) {
      this.#singlyUpTo = batch.at(-1)?.position ?? 0n
      return true
    }
    const before = this.#rejections.position === event.position ? this.#rejections.count : 0
    this.#rejections = { position: event.position, count: before + 1 }
    if (this.#rejections.count < ATTEMPTS_MAX) {
      await this.#noteFailure(message)
      return false
    }
    if ((await store.transaction((tx) => tx.eventSinks.countDeadLetters(sink.name))) >= DEAD_LETTERS_MAX) {
      await this.#noteFailure(`There are ${grouped(DEAD_LETTERS_MAX)} dead letters: replay or discard them`)
      return false
    }
    const { position, id, type } = event
    log.warn({ sink: sink.name, id, problem: message }, 'a sink rejects an event')
    watcher.eventRejected(sink.name)
    this.#noteSuccess()
    return this.#moveCursor(chunk, batch, { position, eventId: id, type, problem: message, at: now() })
  }

  async #replay(letter: DeadLetter): Promise<boolean> {
    const { store, sink, now } = this.#deps
    const { position } = letter
    const found = await this.#read(position - 1n, position)
    const isSelected = sink.groups.includes(groupOf(letter.type))
    const missing = isSelected
      ? 'The event is not stored any more.'
      : 'The types of the sink do not include this event.'
    const problem = found instanceof CodedError ? found.message : missing
    const isSent = !(found instanceof CodedError) && found.events.length > 0
    const outcome = isSent ? await this.#send(found.events) : new EventsRejected(problem)
    if (outcome === undefined) return false
    if (isSent) this.#noteSuccess()
    await store.transaction(async (tx) => {
      if (isSent) await tx.eventSinks.respond(sink.name, this.#lease())
      if (outcome === 'DONE') await tx.eventSinks.removeDeadLetter(sink.name, position)
      else await tx.eventSinks.keepDeadLetter(sink.name, { ...letter, problem: outcome.message, at: now() })
    })
    return true
  }

  /** @param leastMs shortest pause; limited by the longest one */
  async #noteFailure(problem: string, leastMs = 0): Promise<void> {
    const { store, sink, log, watcher, now } = this.#deps
    if (!this.#isFailing) log.warn({ sink: sink.name, problem }, 'a sink does not take events')
    this.#isFailing = true
    watcher.sinkFailing(sink.name, true)
    const retryAt = now() + Math.max(this.#backoffMs(), Math.min(leastMs, BACKOFF_CAP_MS))
    await store.transaction((tx) => tx.eventSinks.fail(sink.name, this.#lease(), problem, Math.round(retryAt)))
  }

  #backoffMs(): number {
    const ms = Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** this.#failures) * (0.5 + this.#deps.fraction() / 2)
    this.#failures += 1
    return ms
  }

  /** After a failure of the database. */
  #pause(): void {
    this.#failedAt = this.#deps.now()
    this.#pauseMs = this.#backoffMs()
  }

  #noteSuccess(): void {
    const { sink, watcher } = this.#deps
    if (this.#isFailing) watcher.sinkFailing(sink.name, false)
    this.#isFailing = false
    this.#failures = 0
    this.#pauseMs = 0
  }
}

async function readEvents(
  reader: Reader,
  { sink: { groups }, tenantId }: Pick<PublisherDeps, 'sink' | 'tenantId'>,
  after: bigint,
  upTo: bigint,
): Promise<Chunk> {
  const range = { after, upTo, instanceId: null, from: null, to: null, limit: EVENTS_READ, entries: true } as const
  const usage = groups.includes('usage') ? await reader.usage.range(range) : { records: [], end: upTo }
  // After the read: until then, none was deleted. An archive waits for all sinks that the database knows.
  const archive = groups.includes('usage') ? await reader.usageArchives.later(after, range) : null
  if (archive !== null) throw usageArchivedError(after, archive)
  const isUsageOnly = groups.every((group) => group === 'usage')
  const changes = isUsageOnly ? [] : await reader.events.range(after, upTo, EVENTS_READ)
  const lastChange = changes.length < EVENTS_READ ? upTo : (changes.at(-1)?.position ?? upTo)
  // Where one kind may have more, the other one waits for it.
  const end = usage.end < lastChange ? usage.end : lastChange
  const events = [
    ...usage.records.map((numbered) => usageEvent(tenantId, numbered)),
    ...changes.map((numbered) => changeEvent(tenantId, numbered)),
  ]
    .filter(({ position, type }) => position <= end && groups.includes(groupOf(type)))
    .sort((one, other) => (one.position < other.position ? -1 : 1))
  return { after, events, end }
}
