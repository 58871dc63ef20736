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
import { IDEMPOTENCY_LIFETIME_MS, type IdempotencyClaim, keyInUse, requireSame } from './idempotency-key.ts'
import type { Pool, UsageRecord } from '../storage/records.ts'
import type { Store, Transaction } from '../storage/store.ts'
import { usageOfDecision, withMetaData } from '../usage/usage-of-request.ts'

export interface AccessCommand {
  readonly instanceId: string
  readonly correlationId: string
  readonly request: AccessRequest
  /** JSON text of each item, in order. */
  readonly metaData: readonly (string | null)[]
  /** A repetition of the request under the same key gets the first answer. */
  readonly once?: {
    readonly claim: IdempotencyClaim
    /** JSON text that answers repetitions. */
    readonly answerOf: (decision: Decision) => string
  }
}

/** The decision, or the stored answer to an earlier request with the same idempotency key. */
export type AccessResult = { readonly decision: Decision } | { readonly answer: string }

/** Items per transaction: the first caller waits for the last. A single request may have more. */
const BATCH_ITEMS_MAX = 64

const BATCHERS_MAX = 1_000

/** Pools remembered per instance. A missing one only costs a second lock. */
const LAST_SEEN_MAX = 200

interface Placed {
  readonly order: AccessCommand
  readonly now: number
}

type Outcome = PromiseSettledResult<AccessResult>

interface InstanceBatcher {
  readonly batcher: Batcher<Placed, AccessResult>
  /** The pools after the last decisions here; other nodes may have changed them. */
  readonly lastSeen: Map<AccountId, Pool>
}

export class AccessBatcher {
  readonly #store: Pick<Store, 'transaction'>
  readonly #policies: Policies
  readonly #shortages: CloudShortages
  readonly #defer: Defer
  readonly #batchers = new Map<string, InstanceBatcher>()
  /** Scopes of idempotency keys whose requests are being decided here. */
  readonly #claimed = new Set<string>()

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
  async request(order: Omit<AccessCommand, 'once'>, now: number): Promise<Decision> {
    const result = await this.#batcherOf(order.instanceId).batcher.ask({ order, now })
    if ('answer' in result) throw new Error('invariant: only requests with a key have stored answers')
    return result.decision
  }

  /**
   * Charges once under an idempotency key.
   * @throws CodedError NOT_FOUND, IDEMPOTENCY_CONFLICT, IDEMPOTENCY_IN_PROGRESS
   */
  async requestOnce(order: AccessCommand & Required<Pick<AccessCommand, 'once'>>, now: number): Promise<AccessResult> {
    const { scope } = order.once.claim
    if (this.#claimed.has(scope)) throw keyInUse()
    this.#claimed.add(scope)
    try {
      return await this.#batcherOf(order.instanceId).batcher.ask({ order, now })
    } finally {
      this.#claimed.delete(scope)
    }
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
      // The key is stored now: the next attempt finds its answer.
      if (reason instanceof StoredMeanwhile) return this.#serve(instanceId, batcher, placed)
      if (placed.length === 1 || !mayBeOfOneRequest(reason)) return placed.map(() => ({ status: 'rejected', reason }))
      const half = placed.length >> 1
      return [
        ...(await this.#serve(instanceId, batcher, placed.slice(0, half))),
        ...(await this.#serve(instanceId, batcher, placed.slice(half))),
      ]
    }
  }

  async #decide(instanceId: string, batcher: InstanceBatcher, all: readonly Placed[]): Promise<readonly Outcome[]> {
    const latest = all.reduce((max, { now }) => Math.max(max, now), 0)
    let runs = 0
    const decided = await this.#store.transaction(async (tx) => {
      runs += 1
      const repeated = await repetitionsOf(tx, all)
      const placed = all.filter((each) => !repeated.has(each))
      if (placed.length === 0) return { repeated, placed, outcomes: [], after: new Map<AccountId, Pool>() }
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
      await storeAnswers(tx, placed, outcomes)
      return { repeated, placed, outcomes, after }
    })
    if (decided === undefined) throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
    const { repeated, placed, outcomes, after } = decided
    if (batcher.lastSeen.size + after.size > LAST_SEEN_MAX) batcher.lastSeen.clear()
    for (const [account, pool] of after) batcher.lastSeen.set(account, pool)
    const decisions = new Map(placed.map((each, index) => [each, outcomes[index]]))
    return all.map((each): Outcome => {
      const earlier = repeated.get(each)
      if (earlier !== undefined) return earlier
      const outcome = decisions.get(each)
      if (outcome === undefined) throw new Error('invariant: one outcome for each order')
      return outcome.status === 'fulfilled'
        ? { status: 'fulfilled', value: { decision: outcome.value.decision } }
        : outcome
    })
  }
}

/** Another node has stored an answer for the key of one of the requests. */
class StoredMeanwhile extends Error {}

/** The requests that have an answer already, with it, or with the refusal of a different request under the same key. */
async function repetitionsOf(tx: Transaction, placed: readonly Placed[]): Promise<ReadonlyMap<Placed, Outcome>> {
  const scopes = placed.flatMap(({ order: { once } }) => (once === undefined ? [] : [once.claim.scope]))
  const outcomes = new Map<Placed, Outcome>()
  if (scopes.length === 0) return outcomes
  const oldest = Math.min(...placed.map(({ now }) => now))
  const stored = await tx.idempotency.find(scopes, oldest - IDEMPOTENCY_LIFETIME_MS)
  for (const each of placed) {
    const { once } = each.order
    const found = once === undefined ? undefined : stored.get(once.claim.scope)
    if (once === undefined || found === undefined) continue
    try {
      requireSame(found, once.claim)
      outcomes.set(each, { status: 'fulfilled', value: { answer: found.answer } })
    } catch (reason) {
      outcomes.set(each, { status: 'rejected', reason })
    }
  }
  return outcomes
}

/** @throws StoredMeanwhile */
async function storeAnswers(
  tx: Transaction,
  placed: readonly Placed[],
  outcomes: readonly PromiseSettledResult<Settled>[],
): Promise<void> {
  const answers = placed.flatMap(({ order: { once }, now }, index) => {
    const outcome = outcomes[index]
    if (once === undefined || outcome?.status !== 'fulfilled') return []
    return [{ ...once.claim, answer: once.answerOf(outcome.value.decision), created: now }]
  })
  // In one sequence on all nodes, so that transactions do not wait for each other in a circle.
  for (const answer of answers.toSorted((a, b) => (a.scope < b.scope ? -1 : 1))) {
    if (!(await tx.idempotency.add(answer, answer.created - IDEMPOTENCY_LIFETIME_MS))) throw new StoredMeanwhile()
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
