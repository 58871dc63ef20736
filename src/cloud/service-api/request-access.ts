/**
 * One-off access requests: each item is decided separately and charged once, durably, before the response. Waiting
 * requests of an instance share a transaction, to lock a hot line item once; failures stay separate. Source: interface,
 * Non-session access request.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { AccessRequest, Decision } from '../../core/rules/decision.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { CloudShortages } from '../sync/grants/cloud-shortages.ts'
import { type PoolRequest, decideInTurn, guessInTurn } from '../accounts/decide-over-pools.ts'
import { type Batch, Batcher, type Defer } from '../runtime/batcher.ts'
import { needsNewRevision } from '../policy/bump-policy-revision.ts'
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
  /** The pools after the last decisions here, which may have failed; other nodes may have changed them. */
  readonly lastSeen: Map<AccountId, Pool>
}

interface InstanceBatch extends Batch<Placed> {
  readonly instanceId: string
  readonly batcher: InstanceBatcher
}

export class AccessBatcher {
  readonly #store: Pick<Store, 'transaction'>
  readonly #policies: Pick<Policies, 'hold' | 'lastOf'>
  readonly #shortages: CloudShortages
  readonly #defer: Defer
  readonly #batchers = new Map<string, InstanceBatcher>()
  /** Scopes of idempotency keys whose requests are being decided here. */
  readonly #claimed = new Set<string>()

  constructor(
    store: Pick<Store, 'transaction'>,
    policies: Pick<Policies, 'hold' | 'lastOf'>,
    shortages: CloudShortages,
    defer: Defer,
  ) {
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
        serve: (placed, batch) => this.#serve({ ...batch, instanceId, batcher: made }, [...placed]),
        weightOf: ({ order }) => order.request.items.length,
        weightMax: BATCH_ITEMS_MAX,
      }),
      lastSeen: new Map(),
    }
    this.#batchers.set(instanceId, made)
    return made
  }

  /**
   * If the store refuses a batch because of one request, its halves are tried separately.
   * @param placed grows by the requests that join
   */
  async #serve(batch: InstanceBatch, placed: Placed[]): Promise<readonly Outcome[]> {
    try {
      return await this.#decide(batch, placed)
    } catch (reason) {
      // The key is stored now: the next attempt finds its answer.
      if (reason instanceof StoredMeanwhile) return this.#serve(batch, placed)
      if (placed.length === 1 || !mayBeOfOneRequest(reason)) return placed.map(() => ({ status: 'rejected', reason }))
      const half = placed.length >> 1
      const part = { ...batch, join: () => [] }
      return [...(await this.#serve(part, placed.slice(0, half))), ...(await this.#serve(part, placed.slice(half)))]
    }
  }

  async #decide(batch: InstanceBatch, all: Placed[]): Promise<readonly Outcome[]> {
    let runs = 0
    const outcomes = await this.#store.transaction((tx) => {
      runs += 1
      return this.#decideIn(tx, batch, all, runs === 1)
    })
    if (outcomes === undefined) throw new CodedError('NOT_FOUND', `There is no instance ${batch.instanceId}.`)
    return all.map((each): Outcome => {
      const outcome = outcomes.get(each)
      if (outcome === undefined) throw new Error('invariant: one outcome for each order')
      return outcome
    })
  }

  /** Undefined: there is no such instance. */
  async #decideIn(
    tx: Transaction,
    { instanceId, batcher, join, next }: InstanceBatch,
    all: Placed[],
    isFirst: boolean,
  ): Promise<ReadonlyMap<Placed, Outcome> | undefined> {
    if (isFirst) all.push(...join(() => true))
    const results = new Map(await repetitionsOf(tx, all))
    const placed = all.filter((each) => !results.has(each))
    if (placed.length === 0) return results
    const guessBy = (policy: LoadedPolicy) => {
      const orders = placed.map((each) => orderOf(policy, each))
      // Do not repeat a guess that made the transaction start over.
      return { policy, orders, guess: isFirst ? guessInTurn(policy, orders, batcher.lastSeen) : undefined }
    }
    const last = this.#policies.lastOf(instanceId)
    const first = last === undefined ? undefined : guessBy(last)
    const loaded = await this.#policies.hold(tx, instanceId, latestOf(placed), first?.guess?.consulted)
    if (loaded === undefined) return undefined
    // While it waited for the locks, for example of another node, more requests have come.
    const joined = isFirst ? join(({ now }) => !needsNewRevision(loaded, now)) : []
    all.push(...joined)
    for (const [each, outcome] of await repetitionsOf(tx, joined)) results.set(each, outcome)
    placed.push(...joined.filter((each) => !results.has(each)))
    const { orders, guess } = joined.length === 0 && first?.policy === loaded ? first : guessBy(loaded)
    const { outcomes, changed, after } = await decideInTurn(tx, loaded, orders, { guess })
    await tx.accounts.save(changed)
    const settled = outcomes.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value : undefined))
    await tx.usage.append(settled.flatMap((each) => each?.records ?? []))
    const requests = settled.flatMap((each, index) => {
      const request = placed[index]?.order.request
      return each === undefined || request === undefined ? [] : [{ ...BEST_EFFORT, request, decision: each.decision }]
    })
    await this.#shortages.note(tx, loaded, { requests, pools: after }, latestOf(placed))
    await storeAnswers(tx, placed, outcomes)
    if (batcher.lastSeen.size + after.size > LAST_SEEN_MAX) batcher.lastSeen.clear()
    for (const [account, pool] of after) batcher.lastSeen.set(account, pool)
    // While this transaction is committed, the next one reads and waits for its locks.
    next()
    for (const [index, outcome] of outcomes.entries()) {
      const each = placed[index]
      if (each !== undefined) results.set(each, resultOf(outcome))
    }
    return results
  }
}

const BEST_EFFORT = { mode: 'BEST_EFFORT' } as const

function latestOf(placed: readonly Placed[]): number {
  return placed.reduce((max, { now }) => Math.max(max, now), 0)
}

function resultOf(outcome: PromiseSettledResult<Settled>): Outcome {
  return outcome.status === 'fulfilled' ? { status: 'fulfilled', value: { decision: outcome.value.decision } } : outcome
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
