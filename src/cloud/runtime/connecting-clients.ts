/**
 * Lets batches wait while clients connect: Node accepts one connection in a turn of its event loop, so requests on new
 * connections come one by one.
 */
import type { Defer } from './batcher.ts'

/** The longest wait. */
const TURNS_MAX = 16

export class ConnectingClients {
  readonly #nextTurn: Defer
  /** Whether a client has connected in this turn or the last one: its request comes a turn later. */
  #areThere = false
  #isNew = false

  /** @param nextTurn calls at the end of the turn, or in the next one if it is the end */
  constructor(nextTurn: Defer) {
    this.#nextTurn = nextTurn
  }

  /** Call for each new connection. */
  connected(): void {
    this.#isNew = true
    if (this.#areThere) return
    this.#areThere = true
    this.#lookAgain()
  }

  /** Calls at the end of a turn without new connections. */
  readonly defer: Defer = (call) => this.#wait(call, TURNS_MAX)

  #wait(call: () => void, turnsMax: number): void {
    this.#nextTurn(() => {
      if (this.#areThere && turnsMax > 1) this.#wait(call, turnsMax - 1)
      else call()
    })
  }

  #lookAgain(): void {
    this.#nextTurn(() => {
      this.#areThere = this.#isNew
      this.#isNew = false
      if (this.#areThere) this.#lookAgain()
    })
  }
}
