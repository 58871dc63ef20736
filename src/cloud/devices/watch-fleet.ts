/** Figures of each instance for monitoring. One step looks at one instance, so that no request waits long. */
import { poolsOf } from '../accounts/pools-of.ts'
import type { Policies } from '../policy/load-policy.ts'
import type { Contact } from '../storage/device-records.ts'
import type { Instance } from '../storage/records.ts'
import type { Reader, Store } from '../storage/store.ts'
import { type EdgeTerms, overdueBefore } from './terms.ts'

export interface InstanceFigures {
  readonly instanceId: string
  readonly devices: ReadonlyMap<Contact, number>
  /** Of the line item with the smallest part left, from 0 to 1; null: no line item has an end. */
  readonly leastLeft: number | null
}

export interface FleetWatchDeps {
  readonly store: Pick<Store, 'read'>
  readonly policies: Policies
  readonly terms: EdgeTerms
  readonly now: () => number
  readonly onRound: (figures: readonly InstanceFigures[]) => void
}

/** Instances with figures, the oldest first: it bounds the number of series. */
const INSTANCES_WATCHED_MAX = 50

/** A count of this size means "this many or more". */
const DEVICES_COUNTED_MAX = 10_000

const LINE_ITEMS_WATCHED_MAX = 100

const PARTS = 1_000_000n

export class FleetWatch {
  readonly #deps: FleetWatchDeps
  #round: InstanceFigures[] = []

  constructor(deps: FleetWatchDeps) {
    this.#deps = deps
  }

  /** Returns whether the round has more instances. */
  async step(): Promise<boolean> {
    const figures = await this.#deps.store.read(async (reader) => {
      const [instance] = await reader.instances.list(this.#round.length, 1)
      return instance === undefined ? null : this.#figuresOf(reader, instance)
    })
    if (figures !== null) this.#round.push(figures)
    if (figures !== null && this.#round.length < INSTANCES_WATCHED_MAX) return true
    this.#deps.onRound(this.#round)
    this.#round = []
    return false
  }

  async #figuresOf(reader: Reader, { id: instanceId }: Instance): Promise<InstanceFigures> {
    const { policies, terms } = this.#deps
    const now = this.#deps.now()
    const overdue = overdueBefore(now, terms)
    const devices = await reader.edge.devices.countByContact({ instanceId }, overdue, DEVICES_COUNTED_MAX)
    const lineItems = (await policies.of(reader, instanceId))?.policy.lineItems ?? []
    const inUse = lineItems.filter(
      ({ state, startsAt, endsAt }) => state === 'DEPLOYED' && startsAt <= now && endsAt > now,
    )
    const pools = await poolsOf(reader, instanceId, inUse.slice(0, LINE_ITEMS_WATCHED_MAX), now)
    const parts = pools.flatMap(({ left, used }) => (left === null ? [] : [partOf(left, used + left)]))
    return { instanceId, devices, leastLeft: parts.length === 0 ? null : Math.min(...parts) }
  }
}

function partOf(left: bigint, whole: bigint): number {
  return left <= 0n || whole <= 0n ? 0 : Number((left * PARTS) / whole) / Number(PARTS)
}
