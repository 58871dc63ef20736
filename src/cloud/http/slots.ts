/**
 * Limits concurrent requests, so that no caller can block others by sending or reading slowly. Requests whose body is
 * arriving are counted apart from requests in progress: a body that never ends takes no place of a request that can be
 * answered. A slot is taken after authentication and released when the response is sent or the connection closes.
 *
 * The response to a refused client or device has the time when a place will be free: see comeback.ts.
 *
 * Each count has places that only administrators get, and places that only they and devices get. Registered client keys
 * leave each other as many places as each of them uses, whatever their number.
 */
import type { IncomingMessage } from 'node:http'
import type { FastifyReply } from 'fastify'
import { CodedError } from '../../protocol/errors.ts'
import { Comeback } from './comeback.ts'
import type { Caller } from './operation.ts'

/** Concurrent requests per device or enrollment token: an agent has four connections. */
const REQUESTS_OF_ONE_DEVICE_MAX = 16

/** Concurrent requests on one connection whose caller is not known yet: a client that waits for responses has one. */
const UNKNOWN_OF_CONNECTION_MAX = 64

/** Part of the places that clients may take together, and clients and devices together. */
const PART_OF_CLIENTS = 3 / 4
const PART_OF_DEVICES = 9 / 10

const RETRY_AFTER_MS = 1_000

export interface SlotLimits {
  /** Requests in progress; as many may be arriving or being authenticated. */
  readonly requestsMax: number
  /** Concurrent requests per registered key, and of all devices whose key is not introduced yet. */
  readonly ofKeyMax: number
  /** Monotonic, ms. */
  readonly now: () => number
}

/** Of one request. */
interface Slot {
  /** Its body has arrived. @throws CodedError KEY_BUSY, OVERLOADED */
  readonly begin: () => void
  readonly release: () => void
}

interface Share {
  readonly holder: string
  /** Concurrent requests of the holder. */
  readonly most: number
  /** Places that callers of this kind and of those ranked below may take. */
  readonly places: number
  /** Takes a place only if more than it has are free. */
  readonly leavesOthers: boolean
  /** Comes back after all that were refused before. Administrators do not wait for thousands of devices. */
  readonly getsTurn: boolean
}

export class Slots {
  readonly #limits: SlotLimits
  readonly #comeback: Comeback
  readonly #arriving = new Count()
  readonly #inProgress = new Count()
  readonly #slots = new WeakMap<FastifyReply['raw'], Slot>()
  #authenticating = 0
  /** Of these, requests of each connection. */
  readonly #unknown = new WeakMap<object, number>()

  constructor(limits: SlotLimits) {
    this.#limits = limits
    this.#comeback = new Comeback(limits.now)
  }

  /** How many requests have no response yet. Those whose body is arriving do not count. */
  get inProgress(): number {
    return this.#inProgress.total
  }

  /** @throws CodedError KEY_BUSY, OVERLOADED, or of `authenticate` */
  async authenticate<T>({ socket }: Pick<IncomingMessage, 'socket'>, authenticate: () => Promise<T>): Promise<T> {
    const { requestsMax } = this.#limits
    const ofConnection = this.#unknown.get(socket) ?? 0
    if (ofConnection >= UNKNOWN_OF_CONNECTION_MAX) throw busy(ofConnection)
    // Only authenticated callers get a turn.
    if (this.#authenticating >= requestsMax) throw overloaded(requestsMax, RETRY_AFTER_MS)
    this.#unknown.set(socket, ofConnection + 1)
    this.#authenticating += 1
    try {
      return await authenticate()
    } finally {
      this.#authenticating -= 1
      this.#unknown.set(socket, (this.#unknown.get(socket) ?? 1) - 1)
    }
  }

  /**
   * Until the response is sent or the connection closes.
   * @throws CodedError KEY_BUSY, OVERLOADED
   */
  takeUntilClose(caller: Caller, { raw }: Pick<FastifyReply, 'raw'>, isArriving: boolean): void {
    // A closed connection would never release its slot.
    if (raw.closed || raw.destroyed) return
    const slot = this.take(caller, isArriving)
    this.#slots.set(raw, slot)
    raw.once('close', slot.release)
  }

  /** The body has arrived. @throws CodedError KEY_BUSY, OVERLOADED */
  begin({ raw }: Pick<FastifyReply, 'raw'>): void {
    if (!raw.closed) this.#slots.get(raw)?.begin()
  }

  /** Until its release. @throws CodedError KEY_BUSY, OVERLOADED */
  take(caller: Caller, isArriving: boolean): Slot {
    const share = this.#shareOf(caller)
    const { holder, most } = share
    if (this.#arriving.of(holder) + this.#inProgress.of(holder) >= most) throw busy(most)
    if (isArriving) this.#requirePlace(share, this.#arriving)
    // Refuses before the body is read if the request could not begin now.
    this.#requirePlace(share, this.#inProgress)
    let of = isArriving ? this.#arriving : this.#inProgress
    this.#count(of, holder)
    return {
      begin: () => {
        if (of === this.#inProgress) return
        this.#requirePlace(share, this.#inProgress)
        of.remove(holder)
        of = this.#inProgress
        this.#count(of, holder)
      },
      release: () => {
        of.remove(holder)
        if (of === this.#inProgress) this.#comeback.answered()
      },
    }
  }

  #count(of: Count, holder: string): void {
    if (of === this.#inProgress && of.total === 0) this.#comeback.began()
    of.add(holder)
  }

  #requirePlace({ holder, places, leavesOthers, getsTurn }: Share, count: Count): void {
    if (count.total >= places) throw overloaded(places, getsTurn ? this.#comeback.refused(holder) : RETRY_AFTER_MS)
    if (leavesOthers && count.of(holder) >= places - count.total) throw busy(count.of(holder))
  }

  #shareOf(caller: Caller): Share {
    const { requestsMax, ofKeyMax } = this.#limits
    const ofDevices = { places: Math.ceil(requestsMax * PART_OF_DEVICES), leavesOthers: false, getsTurn: true }
    switch (caller.kind) {
      case 'DEVICE':
        return { holder: `device ${caller.deviceId}`, most: REQUESTS_OF_ONE_DEVICE_MAX, ...ofDevices }
      case 'ENROLLMENT':
        return { holder: `enrollment ${caller.token}`, most: REQUESTS_OF_ONE_DEVICE_MAX, ...ofDevices }
      case 'INTRODUCED_DEVICE':
        // Unauthenticated, so all share one limit, as one client would.
        return { holder: 'introduced', most: ofKeyMax, ...this.#ofClients }
      case 'CLIENT':
        return { holder: `key ${caller.keyId}`, most: ofKeyMax, ...this.#ofClients }
      default:
        return {
          holder: `administrator ${caller.issuer ?? ''} ${caller.keyId}`,
          most: ofKeyMax,
          places: requestsMax,
          leavesOthers: false,
          getsTurn: false,
        }
    }
  }

  get #ofClients(): Pick<Share, 'places' | 'leavesOthers' | 'getsTurn'> {
    const places = Math.ceil(this.#limits.requestsMax * PART_OF_CLIENTS)
    return { places, leavesOthers: true, getsTurn: true }
  }
}

function overloaded(most: number, retryAfterMs: number): CodedError {
  return new CodedError('OVERLOADED', `More than ${most} requests are in progress.`, { details: { retryAfterMs } })
}

function busy(most: number): CodedError {
  return new CodedError('KEY_BUSY', `This caller has ${most} requests in progress, which is the maximum now.`, {
    details: { retryAfterMs: RETRY_AFTER_MS },
  })
}

/** Requests in one stage, by holder. */
class Count {
  readonly #byHolder = new Map<string, number>()
  #total = 0

  get total(): number {
    return this.#total
  }

  of(holder: string): number {
    return this.#byHolder.get(holder) ?? 0
  }

  add(holder: string): void {
    this.#total += 1
    this.#byHolder.set(holder, this.of(holder) + 1)
  }

  remove(holder: string): void {
    this.#total -= 1
    const left = this.of(holder) - 1
    if (left === 0) this.#byHolder.delete(holder)
    else this.#byHolder.set(holder, left)
  }
}
