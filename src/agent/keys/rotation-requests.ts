/** Pending requests for a new device key, until the request is durable or fails. */
import type { z } from 'zod'
import type { CodedError } from '../../protocol/errors.ts'
import type { keyRotation } from '../../protocol/local/rotate-key.ts'

export type RotationStatus = Readonly<z.infer<typeof keyRotation>>

export class RotationRequests {
  #waiting: PromiseWithResolvers<RotationStatus>[] = []

  get isRequested(): boolean {
    return this.#waiting.length > 0
  }

  /** Resolves when the request would survive a power cut. @throws CodedError why it cannot be stored */
  ask(): Promise<RotationStatus> {
    const waiting = Promise.withResolvers<RotationStatus>()
    this.#waiting.push(waiting)
    return waiting.promise
  }

  taken(status: RotationStatus): void {
    for (const { resolve } of this.#waiting.splice(0)) resolve(status)
  }

  failed(error: CodedError): void {
    for (const { reject } of this.#waiting.splice(0)) reject(error)
  }
}
