/**
 * Something about the application sessions that each caller used most recently. Every caller has room for as many as
 * every other one, and only its own idlest ones make way for its next: whatever a caller names, nobody else loses
 * anything by it.
 */
import { ownerOf } from './application-session.ts'

export class RecentOfEach<T> {
  readonly #perCallerMax: number
  /** By caller and application session, least recently used first. */
  readonly #callers = new Map<string, Map<string, T>>()
  #size = 0

  constructor(perCallerMax: number) {
    this.#perCallerMax = perCallerMax
  }

  /** Application sessions of all callers. */
  get size(): number {
    return this.#size
  }

  get(session: string): T | undefined {
    return this.#callers.get(ownerOf(session))?.get(session)
  }

  /** Takes the caller's idlest application session out where it has room for no other; returns what was kept about it. */
  freeSpace(session: string): T | undefined {
    const own = this.#callers.get(ownerOf(session))
    if (own === undefined || own.has(session) || own.size < this.#perCallerMax) return undefined
    const [idlest] = own
    if (idlest === undefined) throw new Error('invariant: there is room for at least one')
    own.delete(idlest[0])
    this.#size -= 1
    return idlest[1]
  }

  /** Makes it the most recently used one. Nothing makes way here: that is {@link freeSpace}. */
  set(session: string, value: T): void {
    const owner = ownerOf(session)
    let own = this.#callers.get(owner)
    if (own === undefined) {
      own = new Map()
      this.#callers.set(owner, own)
    }
    if (!own.delete(session)) this.#size += 1
    own.set(session, value)
  }
}
