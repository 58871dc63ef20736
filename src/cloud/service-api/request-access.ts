/**
 * One-off access requests: each item is decided separately and charged once, durably, before the response. Waiting
 * requests of an instance share a transaction, to lock a hot line item once; failures stay separate. Source: interface,
 * Non-session access request.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { AccessRequest, Decision } from '../../core/rules/decision.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { CloudShortages } from '../sync/grants/cloud-shortages.ts'
import { type PoolRequest, decideInTurn, likelyAccounts } from '../accounts/decide-over-pools.ts'
import { Batcher, type Defer } from '../runtime/batcher.ts'
import type { LoadedPolicy, Policies } from '../policy/load-policy.ts'
import type { Pool, UsageRecord } from '../storage/records.ts'
import type { Store } from '../storage/store.ts'
import { usageOfDecision, withMetaData } from '../usage/usage-of-request.ts'

export interface AccessCommand {
  readonly instanceId: string
  readonly correlationId: string
  readonly request: AccessRequest
  /** JSON text of each item, in order. */
  readonly metaData: readonly (string | null)[]
}

/** Items per transaction: the first caller waits for the last. A single request may have more. */
const BATCH_ITEMS_MAX = 64

const BATCHERS_MAX = 1_000

/** Pools remembered per instance. A missing one only costs a second lock. */
const LAST_SEEN_MAX = 200

interface Placed {
  readonly order: AccessCommand
  readonly now: number
}

type Outcome = PromiseSettledResult<Decision>

interface InstanceBatcher {
  readonly batcher: Batcher<Placed, Decision>
  /** The pools after the last decisions here; other nodes may have changed them. */
  readonly lastSeen: Map<AccountId, Pool>
}

export class AccessBatcher {
  readonly #store: Pick<Store, 'transaction'>
  readonly #policies: Policies
  readonly #shortages: CloudShortages
  readonly #defer: Defer
  readonly #batchers = new Map<string, InstanceBatcher>()

  constructor(store: Pick<Store, 'transaction'>, policies: Policies, shortages: CloudShortages, defer: Defer) {
    this.#store = store
    this.#policies = policies
    this.#shortages = shortages
    this.#defer = defer
  }

  /**
   * @param now POSIX ms
   * @throws CodedError NOT_FOUND for an unknown instance
   */
  async request(order: AccessCommand, now: number): Promise<Decision> {
    return this.#batcherOf(order.instanceId).batcher.ask({ order, now })
  }

  #batcherOf(instanceId: string): InstanceBatcher {
    const known = this.#batchers.get(instanceId)
    if (known !== undefined) return known
    if (this.#batchers.size >= BATCHERS_MAX) {
      for (const [id, { batcher }] of this.#batchers) if (batcher.idle) this.#batchers.delete(id)
    }
    const made: InstanceBatcher = {
      batcher: new Batcher({
        defer: this.#defer,
        serve: (placed) => this.#serve(instanceId, made, placed),
        weightOf: ({ order }) => order.request.items.length,
        weightMax: BATCH_ITEMS_MAX,
      }),
      lastSeen: new Map(),
    }
    this.#batchers.set(instanceId, made)
    return made
  }

  /** If the store refuses a batch because of one request, its halves are tried separately. */
  async #serve(instanceId: string, batcher: InstanceBatcher, placed: readonly Placed[]): Promise<readonly Outcome[]> {
    try {
      return await this.#decide(instanceId, batcher, placed)
    } catch (reason) {
      if (placed.length === 1 || !mayBeOfOneRequest(reason)) return placed.map(() => ({ status: 'rejected', reason }))
      const half = placed.length >> 1
      return [
        ...(await this.#serve(instanceId, batcher, placed.slice(0, half))),
        ...(await this.#serve(instanceId, batcher, placed.slice(half))),
      ]
    }
  }

  async #decide(instanceId: string, batcher: InstanceBatcher, placed: readonly Placed[]): Promise<readonly Outcome[]> {
    const latest = placed.reduce((max, { now }) => Math.max(max, now), 0)
    let runs = 0
    const decided = await this.#store.transaction(async (tx) => {
      runs += 1
      // Do not repeat a guess that made the transaction start over.
      const likelyBy = (policy: LoadedPolicy | undefined): ReadonlySet<AccountId> | undefined =>
        runs > 1 || policy === undefined
          ? undefined
          : likelyAccounts(
              policy,
              placed.map((each) => orderOf(policy, each)),
              batcher.lastSeen,
            )
      const last = this.#policies.lastOf(instanceId)
      const guessed = likelyBy(last)
      const loaded = await this.#policies.hold(tx, instanceId, latest, guessed)
      if (loaded === undefined) return undefined
      const orders = placed.map((each) => orderOf(loaded, each))
      const likely = loaded === last ? guessed : likelyBy(loaded)
      const { outcomes, changed, after } = await decideInTurn(tx, loaded, orders, { likely })
      await tx.accounts.save(changed)
      await tx.usage.append(
        outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? outcome.value.records : [])),
      )
      const requests = placed.flatMap(({ order: { request } }, index) => {
        const outcome = outcomes[index]
        if (outcome?.status !== 'fulfilled') return []
        return [{ request, mode: 'BEST_EFFORT', decision: outcome.value.decision } as const]
      })
      await this.#shortages.note(tx, loaded, { requests, pools: after }, latest)
      return { outcomes, after }
    })
    if (decided === undefined) throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
    const { outcomes, after } = decided
    if (batcher.lastSeen.size + after.size > LAST_SEEN_MAX) batcher.lastSeen.clear()
    for (const [account, pool] of after) batcher.lastSeen.set(account, pool)
    return outcomes.map((outcome) =>
      outcome.status === 'fulfilled' ? { status: 'fulfilled', value: outcome.value.decision } : outcome,
    )
  }
}

interface Settled {
  readonly decision: Decision
  readonly records: readonly UsageRecord[]
}

function orderOf(loaded: LoadedPolicy, { order, now }: Placed): PoolRequest<Settled> {
  const { request, correlationId, metaData } = order
  const header = {
    correlationId,
    requester: request.requester,
    source: { kind: 'one-off' },
    operation: 'REQUEST',
    now,
  } as const
  const items = withMetaData(request.items, metaData)
  return {
    request,
    mode: 'BEST_EFFORT',
    now,
    settle: (decision, before) => ({
      decision,
      records: usageOfDecision(header, loaded, items, { decision, before }),
    }),
  }
}

/**
 * False for failures that every request would meet, and if the transaction's outcome is unknown. After other failures
 * it had no effect, so a retry is safe.
 */
function mayBeOfOneRequest(error: unknown): boolean {
  return !(error instanceof CodedError) || error.code === 'BAD_REQUEST'
}
