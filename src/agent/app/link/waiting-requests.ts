/**
 * Access requests that wait for tokens. What they need goes into the next segment; each of them is let go when a round
 * that carried its needs has ended, when a round failed, or when its patience ends, whichever is first.
 */
import type { AccountId } from '../../../core/account.ts'
import { MICRO_MAX, type Micro } from '../../../core/amount.ts'
import type { Want } from '../../../core/grant.ts'
import type { Timers } from './ports.ts'

interface Waiting {
  readonly wants: readonly Want[]
  carried: boolean
  readonly letGo: () => void
}

export class WaitingRequests {
  readonly #waiting = new Set<Waiting>()
  readonly #timers: Timers
  readonly #most: number

  constructor(timers: Timers, most: number) {
    this.#timers = timers
    this.#most = most
  }

  get full(): boolean {
    return this.#waiting.size >= this.#most
  }

  /** Resolves when the request should look at the ledger again. */
  wait(wants: readonly Want[], patienceMs: number): Promise<void> {
    return new Promise((resolve) => {
      const waiting: Waiting = {
        wants,
        carried: false,
        letGo: () => {
          cancel()
          this.#waiting.delete(waiting)
          resolve()
        },
      }
      const cancel = this.#timers.after(patienceMs, waiting.letGo)
      this.#waiting.add(waiting)
    })
  }

  /** Whether somebody needs something that no segment has carried. */
  get asking(): boolean {
    for (const { carried } of this.#waiting) if (!carried) return true
    return false
  }

  /** What those who are not carried yet need together: requests that wait for the same account need its sum. */
  wants(): readonly Want[] {
    const uncarried = [...this.#waiting].filter(({ carried }) => !carried)
    return addUp(uncarried.flatMap(({ wants }) => wants))
  }

  /** A segment holds what {@link WaitingRequests.wants} has just said. */
  carry(): void {
    for (const waiting of this.#waiting) waiting.carried = true
  }

  /** The round has ended well. */
  letCarriedGo(): void {
    for (const waiting of [...this.#waiting]) if (waiting.carried) waiting.letGo()
  }

  /** There is nothing to wait for. */
  letAllGo(): void {
    for (const waiting of [...this.#waiting]) waiting.letGo()
  }
}

/** One want per account: needs at once add up, comfort does not. None is above what a counter can hold. */
export function addUp(wants: Iterable<Want>): readonly Want[] {
  const byAccount = new Map<AccountId, Want>()
  for (const { account, atLeast, wanted } of wants) {
    const before = byAccount.get(account)
    byAccount.set(account, {
      account,
      atLeast: countable((before?.atLeast ?? 0n) + atLeast),
      wanted: countable(before !== undefined && before.wanted > wanted ? before.wanted : wanted),
    })
  }
  return [...byAccount.values()]
}

/** No account ever has more than that: to ask for more is to ask for all that there is. */
function countable(amount: Micro): Micro {
  return amount < MICRO_MAX ? amount : MICRO_MAX
}
