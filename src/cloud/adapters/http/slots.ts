/**
 * How many requests are under way for each who calls. A valid token must not be enough to hold the room of all others by sending
 * or reading slowly: beyond its share a caller is refused, before its body is read, and everybody else goes on. A request takes
 * its place once it is known whose it is, and keeps it until its answer is out or its connection gone.
 */
import type { FastifyReply } from 'fastify'
import { CodedError } from '../../../protocol/errors.ts'
import type { Principal } from '../../app/authenticate.ts'

/** Requests of one device, or with one enrollment token, at a time: an agent has four connections. */
const REQUESTS_OF_ONE_DEVICE_MAX = 16

const RETRY_AFTER_MS = 1_000

export class Slots {
  readonly #ofKeyMax: number
  readonly #held = new Map<string, number>()

  /** @param ofKeyMax requests at a time with tokens of one registered key, and of all devices whose key is yet to be introduced */
  constructor(ofKeyMax: number) {
    this.#ofKeyMax = ofKeyMax
  }

  /** @throws CodedError KEY_BUSY */
  takeFor({ deviceId, keyId }: Pick<Principal, 'deviceId' | 'keyId'>, reply: FastifyReply): void {
    if (deviceId === null) this.#take(`key ${keyId}`, this.#ofKeyMax, reply)
    else this.#take(`device ${deviceId}`, REQUESTS_OF_ONE_DEVICE_MAX, reply)
  }

  /** @throws CodedError KEY_BUSY */
  takeForEnrollment(token: string, reply: FastifyReply): void {
    this.#take(`enrollment ${token}`, REQUESTS_OF_ONE_DEVICE_MAX, reply)
  }

  /** Nobody has proven anything yet: all of them share one place. @throws CodedError KEY_BUSY */
  takeForIntroduced(reply: FastifyReply): void {
    this.#take('introduced', this.#ofKeyMax, reply)
  }

  #take(holder: string, most: number, { raw }: FastifyReply): void {
    // Who has gone meanwhile would never give it back.
    if (raw.closed || raw.destroyed) return
    const held = this.#held.get(holder) ?? 0
    if (held >= most) {
      throw new CodedError(
        'KEY_BUSY',
        `${most} requests of this caller are under way; there may be no more at a time.`,
        {
          facts: { retryAfterMs: RETRY_AFTER_MS },
        },
      )
    }
    this.#held.set(holder, held + 1)
    raw.once('close', () => {
      const left = (this.#held.get(holder) ?? 1) - 1
      if (left === 0) this.#held.delete(holder)
      else this.#held.set(holder, left)
    })
  }
}
