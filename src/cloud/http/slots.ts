/**
 * Limits concurrent requests per caller, so that one valid token cannot block others by sending or reading slowly.
 * Requests beyond the limit are refused before their body is read. A slot is taken after authentication and released
 * when the response is sent or the connection closes.
 */
import type { FastifyReply } from 'fastify'
import { CodedError } from '../../protocol/errors.ts'
import type { Caller } from './operation.ts'

/** Concurrent requests per device or enrollment token: an agent has four connections. */
const REQUESTS_OF_ONE_DEVICE_MAX = 16

const RETRY_AFTER_MS = 1_000

export class Slots {
  readonly #ofKeyMax: number
  readonly #inProgress = new Map<string, number>()

  /** @param ofKeyMax concurrent requests per registered key, and of all devices whose key is not introduced yet */
  constructor(ofKeyMax: number) {
    this.#ofKeyMax = ofKeyMax
  }

  /** @throws CodedError KEY_BUSY */
  take(caller: Caller, { raw }: FastifyReply): void {
    const { holder, most } = this.#shareOf(caller)
    // A closed connection would never release its slot.
    if (raw.closed || raw.destroyed) return
    const count = this.#inProgress.get(holder) ?? 0
    if (count >= most) {
      throw new CodedError('KEY_BUSY', `This caller has ${most} requests in progress, which is the maximum.`, {
        details: { retryAfterMs: RETRY_AFTER_MS },
      })
    }
    this.#inProgress.set(holder, count + 1)
    raw.once('close', () => {
      const left = (this.#inProgress.get(holder) ?? 1) - 1
      if (left === 0) this.#inProgress.delete(holder)
      else this.#inProgress.set(holder, left)
    })
  }

  #shareOf(caller: Caller): { readonly holder: string; readonly most: number } {
    switch (caller.kind) {
      case 'DEVICE':
        return { holder: `device ${caller.deviceId}`, most: REQUESTS_OF_ONE_DEVICE_MAX }
      case 'ENROLLMENT':
        return { holder: `enrollment ${caller.token}`, most: REQUESTS_OF_ONE_DEVICE_MAX }
      case 'INTRODUCED_DEVICE':
        // Unauthenticated, so all share one limit.
        return { holder: 'introduced', most: this.#ofKeyMax }
      default:
        return { holder: `key ${caller.keyId}`, most: this.#ofKeyMax }
    }
  }
}
