/** Technicians who want the device to have another key, until that is kept for good or cannot be. */
import type { CodedError } from '../../../protocol/errors.ts'

export interface RotationStanding {
  /** Thumbprint of the key in use. */
  readonly key: string
  /** Of the one that shall follow it. */
  readonly next: string
}

export class RotationOrders {
  #waiting: PromiseWithResolvers<RotationStanding>[] = []

  get isAsked(): boolean {
    return this.#waiting.length > 0
  }

  /** Resolves when the order would survive a power cut. @throws CodedError why it cannot be kept */
  ask(): Promise<RotationStanding> {
    const waiting = Promise.withResolvers<RotationStanding>()
    this.#waiting.push(waiting)
    return waiting.promise
  }

  taken(standing: RotationStanding): void {
    for (const { resolve } of this.#waiting.splice(0)) resolve(standing)
  }

  failed(error: CodedError): void {
    for (const { reject } of this.#waiting.splice(0)) reject(error)
  }
}
