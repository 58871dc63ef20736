/**
 * Lets batches wait while clients connect: Node accepts one connection in a turn of its event loop, so requests on new
 * connections come one by one.
 */
import type { Defer } from './batcher.ts'

/** The longest wait: so long do clients that connect all the time delay a batch. */
const TURNS_MAX = 16

export class ConnectingClients {
  readonly #nextTurn: (call: () => void) => void
  /** Whether a client has connected in this turn or the last one: without TLS, its request comes a turn later. */
  #areConnecting = false
  #hasConnected = false

  /** @param nextTurn calls at the end of the turn, or in the next one if it is the end */
  constructor(nextTurn: (call: () => void) => void) {
    this.#nextTurn = nextTurn
  }

  /** Call for each new connection. */
  connected(): void {
    this.#hasConnected = true
    if (this.#areConnecting) return
    this.#areConnecting = true
    this.#lookAgain()
  }

  /** Calls at the end of a turn without new connections, or in which enough requests wait. */
  readonly defer: Defer = (call, isEnough) => this.#wait(call, isEnough, TURNS_MAX)

  #wait(call: () => void, isEnough: () => boolean, turnsLeft: number): void {
    this.#nextTurn(() => {
      if (this.#areConnecting && turnsLeft > 1 && !isEnough()) this.#wait(call, isEnough, turnsLeft - 1)
      else call()
    })
  }

  #lookAgain(): void {
    this.#nextTurn(() => {
      this.#areConnecting = this.#hasConnected
      this.#hasConnected = false
      if (this.#areConnecting) this.#lookAgain()
    })
  }
}
