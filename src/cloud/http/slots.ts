/**
 * Limits concurrent requests per caller, so that one valid token cannot block others by sending or reading slowly.
 * Requests beyond the limit are refused before their body is read. A slot is taken after authentication and released
 * when the response is sent or the connection closes.
 */
import type { FastifyReply } from 'fastify'
import { CodedError } from '../../protocol/errors.ts'
import type { Principal } from '../service-api/authenticate.ts'

/** Concurrent requests per device or enrollment token: an agent has four connections. */
const REQUESTS_OF_ONE_DEVICE_MAX = 16

const RETRY_AFTER_MS = 1_000

export class Slots {
  readonly #ofKeyMax: number
  readonly #held = new Map<string, number>()

  /** @param ofKeyMax concurrent requests per registered key, and of all devices whose key is not introduced yet */
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

  /** Unauthenticated, so all share one limit. @throws CodedError KEY_BUSY */
  takeForIntroduced(reply: FastifyReply): void {
    this.#take('introduced', this.#ofKeyMax, reply)
  }

  #take(holder: string, most: number, { raw }: FastifyReply): void {
    // A closed connection would never release its slot.
    if (raw.closed || raw.destroyed) return
    const held = this.#held.get(holder) ?? 0
    if (held >= most) {
      throw new CodedError('KEY_BUSY', `This caller has ${most} requests in progress, which is the maximum.`, {
        details: { retryAfterMs: RETRY_AFTER_MS },
      })
    }
    this.#held.set(holder, held + 1)
    raw.once('close', () => {
      const left = (this.#held.get(holder) ?? 1) - 1
      if (left === 0) this.#held.delete(holder)
      else this.#held.set(holder, left)
    })
  }
}
