/**
 * Keeps a value per application session. Each caller has the same capacity, so callers cannot evict each other's
 * values.
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

  get size(): number {
    return this.#size
  }

  get(session: string): T | undefined {
    return this.#callers.get(ownerOf(session))?.get(session)
  }

  /** At capacity, evicts the caller's least recently used session and returns its value. */
  freeSpace(session: string): T | undefined {
    const own = this.#callers.get(ownerOf(session))
    if (own === undefined || own.has(session) || own.size < this.#perCallerMax) return undefined
    const [idlest] = own
    if (idlest === undefined) throw new Error('invariant: there is room for at least one')
    own.delete(idlest[0])
    this.#size -= 1
    return idlest[1]
  }

  /** Marks it as most recently used. Evicts nothing: call {@link freeSpace} first. */
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
