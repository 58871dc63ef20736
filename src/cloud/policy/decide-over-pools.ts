/**
 * Decides requests one after another in one transaction. Guesses the pools, then locks them by id. A request that fails charges
 * nothing and does not affect the others.
 */
import { type AccountId, parseAccount } from '../../core/accounts/account.ts'
import { METERED_OF_POOL_MAX, meteredLeft } from '../../core/accounts/grant.ts'
import { MICRO_MAX } from '../../core/pricing/amount.ts'
import { decide, type Mode } from '../../core/rules/decide.ts'
import { type AccessRequest, type Decision, type AvailableBalance, exactly } from '../../core/rules/decision.ts'
import { type ReservedItem, refundsByAccount } from '../../core/sessions/session.ts'
import type { LoadedPolicy } from './load-policy.ts'
import { capInForce, capByPolicy } from './rules-in-force.ts'
import { charge, free, isSamePool, newPool, refund } from '../accounts/pool.ts'
import type { Pool } from '../storage/records.ts'
import type { Reader, Transaction } from '../storage/store.ts'

export interface PoolRequest<T> {
  /** The rules of its instance. */
  readonly loaded: LoadedPolicy
  readonly request: AccessRequest
  readonly mode: Mode
  readonly now: number
  /** May be called more than once, so it has no effects; if it throws, nothing is charged. */
  readonly settle: (decision: Decision, before: ReadonlyMap<AccountId, Pool>) => T
}

export interface DecidedOverPools<T> {
  readonly outcomes: readonly PromiseSettledResult<T>[]
  /** By refund and charges: the caller saves them. */
  readonly changed: readonly Pool[]
  readonly after: ReadonlyMap<AccountId, Pool>
}

export interface DecidedRequest {
  readonly request: AccessRequest
  readonly mode: Mode
  readonly decision: Decision
}

export interface Decided {
  readonly requests: readonly DecidedRequest[]
  /** All that the decisions looked at, after them. Locked. Those of other instances are ignored. */
  readonly pools: ReadonlyMap<AccountId, Pool>
}

export interface ShortageNotes {
  /** Notes the missing tokens, so that devices return some, or that a short account can pay again. */
  note(tx: Transaction, loaded: LoadedPolicy, decided: Decided, now: number): Promise<void>
}

/**
 * @param options.refunded is refunded before anything is charged
 * @param options.guess stands if the pools are as it assumed. Default: made by reading
 */
export async function decideInTurn<T>(
  tx: Transaction,
  requests: readonly PoolRequest<T>[],
  options: {
    readonly refunded?: readonly ReservedItem[]
    readonly guess?: Guess<T> | undefined
  } = {},
): Promise<DecidedOverPools<T>> {
  const back = refundsByAccount(options.refunded ?? [])
  const rules = new Map(requests.map(({ loaded }) => [loaded.policy.instanceId, loaded]))
  const fresh = (account: AccountId): Pool => newPool(account, capInForce(rules, account))
  const { guess } = options
  const likely = guess?.consulted ?? (await consultedByReading(tx, requests, fresh))
  const locked = new Map<AccountId, Pool>()
  const exists = new Set<AccountId>()
  const lock = async (accounts: Iterable<AccountId>): Promise<void> => {
    const wanted = [...accounts]
    const pools = await tx.accounts.lock(wanted)
    for (const account of wanted) {
      const pool = pools.get(account)
      if (pool !== undefined) exists.add(account)
      locked.set(account, refund(pool ?? fresh(account), back.get(account) ?? 0n))
    }
  }
  await lock(new Set([...back.keys(), ...likely]))
  let guessed = back.size === 0 && guess !== undefined && isRight(guess, locked) ? guess.trial : undefined
  for (;;) {
    const inputs = { pools: locked, availableOfUnknown: 0n, refunded: [...back.keys()] }
    const trial = guessed ?? tryAll(requests, inputs)
    guessed = undefined
    if (trial.unknown.size > 0) {
      await lock(trial.unknown)
      continue
    }
    const created = [...trial.charged, ...trial.drawnForNothing].filter((account) => !exists.has(account))
    const opened = await tx.accounts.open(created.map((account) => ({ account, cap: capInForce(rules, account) })))
    for (const account of created) exists.add(account)
    // Another transaction may have created and used a pool meanwhile.
    const raced = [...opened.values()].filter((pool) => !isSamePool(pool, locked.get(pool.account)))
    for (const pool of raced) locked.set(pool.account, pool)
    if (raced.length > 0) continue

    const touched = new Set([...back.keys(), ...trial.charged])
    const { outcomes, after } = trial
    return { outcomes, after, changed: [...after.values()].filter(({ account }) => touched.has(account)) }
  }
}

export async function decideOverPools(
  tx: Transaction,
  loaded: LoadedPolicy,
  request: Omit<PoolRequest<never>, 'settle' | 'loaded'>,
  refunded: readonly ReservedItem[] = [],
): Promise<
  Omit<DecidedOverPools<never>, 'outcomes'> & {
    readonly decision: Decision
    readonly before: ReadonlyMap<AccountId, Pool>
  }
> {
  const settle = (decision: Decision, before: ReadonlyMap<AccountId, Pool>) => ({ decision, before })
  const { outcomes, changed, after } = await decideInTurn(tx, [{ ...request, loaded, settle }], { refunded })
  const [outcome] = outcomes
  if (outcome === undefined) throw new Error('invariant: one outcome for each request')
  if (outcome.status === 'rejected') throw outcome.reason
  return { ...outcome.value, changed, after }
}

/** The decision that a one-off request would get now. Charges nothing. */
export async function decideWithoutCharge(
  reader: Pick<Reader, 'accounts'>,
  loaded: LoadedPolicy,
  request: AccessRequest,
  now: number,
): Promise<Decision> {
  const unsettled = { loaded, request, mode: 'BEST_EFFORT', now, settle: (decision: Decision) => decision } as const
  const pools = new Map<AccountId, Pool>()
  for (;;) {
    const { outcomes, unknown } = tryAll([unsettled], { pools, availableOfUnknown: 0n })
    const [outcome] = outcomes
    if (outcome?.status === 'rejected') throw outcome.reason
    if (unknown.size === 0 && outcome !== undefined) return outcome.value
    const found = await reader.accounts.get([...unknown])
    for (const account of unknown)
      pools.set(account, found.get(account) ?? newPool(account, capByPolicy(loaded, account)))
  }
}

/** Decisions by earlier copies of the pools. */
interface Guess<T> {
  readonly consulted: ReadonlySet<AccountId>
  readonly trial: Trial<T>
  readonly seen: ReadonlyMap<AccountId, Pool>
}

/** An unknown pool is assumed to be full. */
export function guessInTurn<T>(requests: readonly PoolRequest<T>[], lastSeen: ReadonlyMap<AccountId, Pool>): Guess<T> {
  const trial = tryAll(requests, { pools: lastSeen, availableOfUnknown: MICRO_MAX })
  const seen = new Map<AccountId, Pool>()
  for (const account of trial.consulted) {
    const pool = lastSeen.get(account)
    if (pool !== undefined) seen.set(account, pool)
  }
  return { consulted: trial.consulted, trial, seen }
}

function isRight<T>({ consulted, seen }: Guess<T>, locked: ReadonlyMap<AccountId, Pool>): boolean {
  if (seen.size < consulted.size) return false
  for (const [account, pool] of seen) if (!isSamePool(pool, locked.get(account))) return false
  return true
}

/** Assuming full pools finds only the first line item that could serve; assuming empty pools finds all. */
async function consultedByReading<T>(
  tx: Transaction,
  requests: readonly PoolRequest<T>[],
  fresh: (account: AccountId) => Pool,
): Promise<ReadonlySet<AccountId>> {
  const unsettled = requests.map((request) => ({ ...request, settle: () => undefined }))
  const seen = new Map<AccountId, Pool>()
  let consulted: ReadonlySet<AccountId> = new Set()
  for (const availableOfUnknown of [MICRO_MAX, MICRO_MAX, 0n, 0n]) {
    const trial = tryAll(unsettled, { pools: seen, availableOfUnknown })
    consulted = trial.consulted
    if (trial.unknown.size === 0) break
    const found = await tx.accounts.get([...trial.unknown])
    for (const account of trial.unknown) seen.set(account, found.get(account) ?? fresh(account))
  }
  return consulted
}

/** Decisions on given pools, which need not be locked. */
interface Trial<T> {
  readonly outcomes: readonly PromiseSettledResult<T>[]
  readonly after: ReadonlyMap<AccountId, Pool>
  readonly charged: ReadonlySet<AccountId>
  /** Pools that grant something below the least amount. Their totals are recorded, so they must be locked too. */
  readonly drawnForNothing: ReadonlySet<AccountId>
  readonly consulted: ReadonlySet<AccountId>
  readonly unknown: ReadonlySet<AccountId>
}

interface TrialInputs {
  readonly pools: ReadonlyMap<AccountId, Pool>
  readonly availableOfUnknown: bigint
  /** Shown to each `settle`, with the pools that its decision uses. */
  readonly refunded?: readonly AccountId[]
}

function tryAll<T>(
  requests: readonly PoolRequest<T>[],
  { pools, availableOfUnknown, refunded = [] }: TrialInputs,
): Trial<T> {
  const after = new Map<AccountId, Pool>()
  const charged = new Set<AccountId>()
  const drawnForNothing = new Set<AccountId>()
  const consulted = new Set<AccountId>()
  const unknown = new Set<AccountId>()
  const look = (account: AccountId): Pool | undefined => {
    const pool = after.get(account) ?? pools.get(account)
    if (pool !== undefined) after.set(account, pool)
    return pool
  }
  refunded.forEach(look)
  const one = ({ loaded: { compiled, unproven }, request, mode, now, settle }: PoolRequest<T>): T => {
    const before = new Map<AccountId, Pool>()
    for (const account of refunded) before.set(account, look(account) ?? missingPool())
    const availableOf = (account: AccountId) => {
      consulted.add(account)
      const pool = look(account)
      if (pool === undefined) {
        unknown.add(account)
        return { left: availableOfUnknown, shortage: 'POOL' } as const
      }
      before.set(account, pool)
      return availableOfPool(pool, unproven)
    }
    const decision = decide(compiled.at(exactly(now)), request, availableOf, mode)
    const known: Pool[] = []
    for (const { account, amount } of decision.postings) {
      const pool = after.get(account)
      if (pool !== undefined) known.push(charge(pool, amount))
    }
    const settled = settle(decision, before)
    for (const pool of known) {
      after.set(pool.account, pool)
      charged.add(pool.account)
    }
    const generous = generousLineItems(decision)
    for (const account of generous.size === 0 ? [] : before.keys()) {
      const parsed = parseAccount(account)
      if (parsed?.kind === 'line' && generous.has(parsed.lineItemId)) drawnForNothing.add(account)
    }
    return settled
  }
  const outcomes = requests.map((request): PromiseSettledResult<T> => {
    try {
      return { status: 'fulfilled', value: one(request) }
    } catch (reason) {
      return { status: 'rejected', reason }
    }
  })
  return { outcomes, after, charged, drawnForNothing, consulted, unknown }
}

function availableOfPool(pool: Pool, unproven: boolean): AvailableBalance {
  if (pool.capTarget === null) {
    return { left: meteredLeft(pool.charged + pool.grantedOut, METERED_OF_POOL_MAX), shortage: 'COUNTER' }
  }
  if (unproven) return { left: 0n, shortage: 'RECOVERY' }
  return { left: free(pool), shortage: pool.withheld > 0n ? 'RECOVERY' : 'POOL' }
}

function generousLineItems({ items }: Decision): ReadonlySet<string> {
  const found = new Set<string>()
  for (const item of items) {
    if (item.outcome !== 'GRANTED') continue
    for (const { lineItemId, charged } of item.shares) if (charged === 0n) found.add(lineItemId)
  }
  return found
}

function missingPool(): never {
  throw new Error('invariant: what is refunded is locked')
}

export async function refundPools(tx: Transaction, refunded: readonly ReservedItem[]): Promise<readonly Pool[]> {
  const back = refundsByAccount(refunded)
  const pools = await tx.accounts.lock([...back.keys()])
  return [...back].map(([account, amount]) => {
    const pool = pools.get(account)
    if (pool === undefined) throw new Error('invariant: what was charged has an account')
    return refund(pool, amount)
  })
}
