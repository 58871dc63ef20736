/**
 * One-off access requests: each item is decided separately and charged once, durably, before the response. Waiting
 * requests share a transaction, to lock a hot line item once and to commit once; failures stay separate. Source: interface,
 * Non-session access request.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { AccessRequest, Decision } from '../../core/rules/decision.ts'
import { type ShortageNotes, type PoolRequest, decideInTurn, guessInTurn } from '../policy/decide-over-pools.ts'
import { type Batch, Batcher, type Defer } from '../runtime/batcher.ts'
import { needsNewRevision } from '../policy/bump-policy-revision.ts'
import type { LoadedPolicy, Policies } from '../policy/load-policy.ts'
import { type IdempotencyClaim, keyInUse, requireSame } from './idempotency-key.ts'
import type { Pool, UsageRecord } from '../storage/records.ts'
import { noInstance } from '../storage/require-record.ts'
import { mayBeOfOneRequest, waitedForLocks } from '../storage/shared-failures.ts'
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

/** Pools remembered. A missing one only costs a second lock. */
const LAST_SEEN_MAX = 2_000

/** Batchers of single instances before those without requests are dropped. */
const APART_MAX = 1_000

interface TimedCommand {
  readonly command: AccessCommand
  readonly now: number
}

type Outcome = PromiseSettledResult<AccessResult | Promise<AccessResult>>

type AccessRequests = Batcher<TimedCommand, AccessResult>

export interface AccessDeps {
  readonly store: Pick<Store, 'transaction'>
  readonly policies: Pick<Policies, 'lockSomeShared' | 'lastOf'>
  readonly shortages: ShortageNotes
  readonly defer: Defer
  /** Batches that can be decided at the same time, each of other instances. Default: 1. */
  readonly batchers?: number
}

export class AccessBatcher {
  readonly #deps: AccessDeps
  /** By a hash of the instance, the same on all nodes: transactions of different batchers never wait for each other. */
  readonly #batchers: readonly AccessRequests[]
  /** Of instances for whose locks a transaction waited too long: the other instances of the batcher do not wait again. */
  readonly #apart = new Map<string, AccessRequests>()
  /** The pools after the last decisions here, which may have failed; other nodes may have changed them. */
  readonly #lastSeen = new Map<AccountId, Pool>()
  /** Scopes of idempotency keys whose requests are being decided here. */
  readonly #claimed = new Set<string>()

  constructor(deps: AccessDeps) {
    this.#deps = deps
    this.#batchers = Array.from({ length: deps.batchers ?? 1 }, () => this.#newBatcher())
  }

  /**
   * @param now POSIX ms
   * @throws CodedError NOT_FOUND for an unknown instance
   */
  async request(command: Omit<AccessCommand, 'once'>, now: number): Promise<Decision> {
    const result = await this.#batcherOf(command.instanceId).submit({ command, now })
    if ('answer' in result) throw new Error('invariant: only requests with a key have stored answers')
    return result.decision
  }

  /**
   * Charges once under an idempotency key.
   * @throws CodedError NOT_FOUND, IDEMPOTENCY_CONFLICT, IDEMPOTENCY_IN_PROGRESS
   */
  async requestOnce(
    command: AccessCommand & Required<Pick<AccessCommand, 'once'>>,
    now: number,
  ): Promise<AccessResult> {
    const { scope } = command.once.claim
    if (this.#claimed.has(scope)) throw keyInUse()
    this.#claimed.add(scope)
    try {
      return await this.#batcherOf(command.instanceId).submit({ command, now })
    } finally {
      this.#claimed.delete(scope)
    }
  }

  #newBatcher(): AccessRequests {
    return new Batcher({
      defer: this.#deps.defer,
      serve: (commands, batch) => this.#serve(batch, [...commands]),
      weightOf: ({ command }) => command.request.items.length,
      weightMax: BATCH_ITEMS_MAX,
    })
  }

  #batcherOf(instanceId: string): AccessRequests {
    const own = this.#apart.get(instanceId)
    if (own !== undefined && !own.idle) return own
    this.#apart.delete(instanceId)
    const shared = this.#batchers[batcherIndex(instanceId, this.#batchers.length)]
    if (shared === undefined) throw new Error('invariant: each instance has a batcher')
    return shared
  }

  #batcherApart(instanceId: string): AccessRequests {
    if (this.#apart.size >= APART_MAX) for (const [id, { idle }] of this.#apart) if (idle) this.#apart.delete(id)
    const own = this.#apart.get(instanceId) ?? this.#newBatcher()
    this.#apart.set(instanceId, own)
    return own
  }

  /**
   * If the store refuses a batch because of one request, its halves are tried separately. If a lock was not free in time,
   * each instance is tried separately.
   * @param commands grows by the requests that join
   */
  async #serve(batch: Batch<TimedCommand>, commands: TimedCommand[]): Promise<readonly Outcome[]> {
    try {
      return await this.#decide(batch, commands)
    } catch (reason) {
      // The key is stored now: the next attempt finds its answer.
      if (reason instanceof StoredMeanwhile) return this.#serve(batch, commands)
      if (waitedForLocks(reason) && instancesOf(commands).length > 1) {
        // Each gets its response when its own instance has been served.
        return commands.map((each) => ({
          status: 'fulfilled',
          value: this.#batcherApart(each.command.instanceId).submit(each),
        }))
      }
      if (commands.length === 1 || !mayBeOfOneRequest(reason))
        return commands.map(() => ({ status: 'rejected', reason }))
      const half = commands.length >> 1
      const part = { ...batch, join: () => [] }
      return [...(await this.#serve(part, commands.slice(0, half))), ...(await this.#serve(part, commands.slice(half)))]
    }
  }

  async #decide(batch: Batch<TimedCommand>, all: TimedCommand[]): Promise<readonly Outcome[]> {
    let runs = 0
    const outcomes = await this.#deps.store.transaction(async (tx) => {
      runs += 1
      const attempt = runs === 1 ? { ...batch, lastSeen: this.#lastSeen } : startingOver(batch)
      const decided = await this.#decideIn(tx, all, attempt)
      tx.serves(all.length)
      return decided
    })
    return all.map((each): Outcome => {
      const outcome = outcomes.get(each)
      if (outcome === undefined) throw new Error('invariant: one outcome for each command')
      return outcome
    })
  }

  async #decideIn(
    tx: Transaction,
    all: TimedCommand[],
    { join, next, lastSeen }: Attempt,
  ): Promise<ReadonlyMap<TimedCommand, Outcome>> {
    const { policies } = this.#deps
    const admitted = new Admitted(tx)
    all.push(...join(() => true))
    await admitted.add(all)
    const early = admitted.undecided()
    if (early.length === 0) return admitted.outcomes
    const expected = prepare((instanceId) => policies.lastOf(instanceId), early, lastSeen)
    const rules = await policies.lockSomeShared(tx, instancesOf(early), latestOf(early), {
      likely: expected?.guess?.consulted ?? [],
    })
    // While it waited for the locks, for example of another node, more requests have come.
    const joined = join(({ command, now }) => isInForce(rules.get(command.instanceId), now))
    all.push(...joined)
    await admitted.add(joined)
    admitted.rejectWithoutRules(rules)
    const commands = admitted.undecided()
    const isAsExpected = joined.length === 0 && isPreparedWith(rules, expected)
    const prepared = isAsExpected ? expected : prepare((instanceId) => rules.get(instanceId), commands, lastSeen)
    if (prepared === undefined) throw new Error('invariant: the rules of these instances are locked')
    const outcomes = await this.#decideAndRecord(tx, commands, prepared)
    // While this transaction is committed, the next one reads and waits for its locks.
    next()
    for (const [index, outcome] of outcomes.entries()) {
      const each = commands[index]
      if (each !== undefined) admitted.outcomes.set(each, resultOf(outcome))
    }
    return admitted.outcomes
  }

  async #decideAndRecord(
    tx: Transaction,
    commands: readonly TimedCommand[],
    { requests, guess }: Prepared,
  ): Promise<readonly PromiseSettledResult<Settled>[]> {
    const { outcomes, changed, after } = await decideInTurn(tx, requests, { guess })
    await tx.accounts.save(changed)
    const settled = outcomes.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value : undefined))
    await tx.usage.append(settled.flatMap((each) => each?.records ?? []))
    await this.#noteShortages(tx, requests, settled, after)
    await storeAnswers(tx, commands, outcomes)
    if (this.#lastSeen.size + after.size > LAST_SEEN_MAX) this.#lastSeen.clear()
    for (const [account, pool] of after) this.#lastSeen.set(account, pool)
    return outcomes
  }

  async #noteShortages(
    tx: Transaction,
    requests: readonly PoolRequest<Settled>[],
    settled: readonly (Settled | undefined)[],
    pools: ReadonlyMap<AccountId, Pool>,
  ): Promise<void> {
    const now = latestOf(requests)
    const decided = requests.flatMap(({ loaded, mode, request }, index) => {
      const decision = settled[index]?.decision
      return decision === undefined ? [] : [{ loaded, mode, request, decision }]
    })
    for (const [loaded, own] of Map.groupBy(decided, (each) => each.loaded)) {
      await this.#deps.shortages.note(tx, loaded, { requests: own, pools }, now)
    }
  }
}

/** One run of the transaction of a batch. */
interface Attempt extends Batch<TimedCommand> {
  /** Pools from which to guess the decisions; undefined: without a guess. */
  readonly lastSeen: ReadonlyMap<AccountId, Pool> | undefined
}

/** No request joins, and nothing is guessed: the guess may have been the reason to start over. */
function startingOver(batch: Batch<TimedCommand>): Attempt {
  return { ...batch, join: () => [], lastSeen: undefined }
}

/** The commands of a transaction, and the outcomes known so far. */
class Admitted {
  readonly outcomes = new Map<TimedCommand, Outcome>()
  readonly #tx: Transaction
  readonly #commands: TimedCommand[] = []

  constructor(tx: Transaction) {
    this.#tx = tx
  }

  async add(commands: readonly TimedCommand[]): Promise<void> {
    this.#commands.push(...commands)
    for (const [each, outcome] of await repetitionsOf(this.#tx, commands)) this.outcomes.set(each, outcome)
  }

  undecided(): readonly TimedCommand[] {
    return this.#commands.filter((each) => !this.outcomes.has(each))
  }

  rejectWithoutRules(rules: ReadonlyMap<string, LoadedPolicy>): void {
    for (const each of this.undecided()) {
      if (!rules.has(each.command.instanceId)) this.outcomes.set(each, notFound(each))
    }
  }
}

/** Undefined if the rules of an instance are missing. */
function prepare(
  rulesOf: (instanceId: string) => LoadedPolicy | undefined,
  commands: readonly TimedCommand[],
  lastSeen: Attempt['lastSeen'],
): Prepared | undefined {
  const requests: PoolRequest<Settled>[] = []
  for (const each of commands) {
    const loaded = rulesOf(each.command.instanceId)
    if (loaded === undefined) return undefined
    requests.push(poolRequestOf(loaded, each))
  }
  return { requests, guess: lastSeen && guessInTurn(requests, lastSeen) }
}

function isPreparedWith(rules: ReadonlyMap<string, LoadedPolicy>, prepared: Prepared | undefined): boolean {
  return prepared?.requests.every(({ loaded }) => loaded === rules.get(loaded.policy.instanceId)) === true
}

/** The same on all nodes. @param instanceId a UUID */
function batcherIndex(instanceId: string, batchers: number): number {
  return Number.parseInt(instanceId.slice(-4), 16) % batchers
}

function instancesOf(commands: readonly TimedCommand[]): readonly string[] {
  return [...new Set(commands.map(({ command }) => command.instanceId))]
}

function isInForce(rules: LoadedPolicy | undefined, now: number): boolean {
  return rules !== undefined && !needsNewRevision(rules, now)
}

function notFound({ command }: TimedCommand): Outcome {
  return { status: 'rejected', reason: noInstance(command.instanceId) }
}

function latestOf(commands: readonly Pick<TimedCommand, 'now'>[]): number {
  return commands.reduce((max, { now }) => Math.max(max, now), 0)
}

function resultOf(outcome: PromiseSettledResult<Settled>): Outcome {
  return outcome.status === 'fulfilled' ? { status: 'fulfilled', value: { decision: outcome.value.decision } } : outcome
}

/** Another node has stored an answer for the key of one of the requests. */
class StoredMeanwhile extends Error {}

/** The requests that have an answer already, with it, or with the refusal of a different request under the same key. */
async function repetitionsOf(
  tx: Transaction,
  commands: readonly TimedCommand[],
): Promise<ReadonlyMap<TimedCommand, Outcome>> {
  const scopes = commands.flatMap(({ command: { once } }) => (once === undefined ? [] : [once.claim.scope]))
  const outcomes = new Map<TimedCommand, Outcome>()
  if (scopes.length === 0) return outcomes
  const stored = await tx.idempotency.find(scopes)
  for (const each of commands) {
    const { once } = each.command
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
  commands: readonly TimedCommand[],
  outcomes: readonly PromiseSettledResult<Settled>[],
): Promise<void> {
  const answers = commands.flatMap(({ command: { once } }, index) => {
    const outcome = outcomes[index]
    if (once === undefined || outcome?.status !== 'fulfilled') return []
    return [{ ...once.claim, answer: once.answerOf(outcome.value.decision) }]
  })
  // In one sequence on all nodes, so that transactions do not wait for each other in a circle.
  for (const answer of answers.toSorted((a, b) => (a.scope < b.scope ? -1 : 1))) {
    if (!(await tx.idempotency.add(answer))) throw new StoredMeanwhile()
  }
}

interface Prepared {
  readonly requests: readonly PoolRequest<Settled>[]
  readonly guess: ReturnType<typeof guessInTurn<Settled>> | undefined
}

interface Settled {
  readonly decision: Decision
  readonly records: readonly UsageRecord[]
}

function poolRequestOf(loaded: LoadedPolicy, { command, now }: TimedCommand): PoolRequest<Settled> {
  const { request, correlationId, metaData } = command
  const header = {
    correlationId,
    requester: request.requester,
    source: { kind: 'one-off' },
    operation: 'REQUEST',
    now,
  } as const
  const items = withMetaData(request.items, metaData)
  return {
    loaded,
    request,
    mode: 'BEST_EFFORT',
    now,
    settle: (decision, before) => ({
      decision,
      records: usageOfDecision(header, loaded, items, { decision, before }),
    }),
  }
}
