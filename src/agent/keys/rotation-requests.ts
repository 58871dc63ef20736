/** Technicians who want the device to have another key, until that is kept for good or cannot be. */
import type { CodedError } from '../../protocol/errors.ts'

export interface RotationStatus {
  /** Thumbprint of the key in use. */
  readonly key: string
  /** Of the one that shall follow it. */
  readonly next: string
}

export class RotationRequests {
  #waiting: PromiseWithResolvers<RotationStatus>[] = []

  get isAsked(): boolean {
    return this.#waiting.length > 0
  }

  /** Resolves when the order would survive a power cut. @throws CodedError why it cannot be kept */
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
