/** Recalls tokens from devices for the cloud's own requests. Source: docs/decisions/fair-sharing.md. */
import type { AccountId } from '../../../core/accounts/account.ts'
import { parseAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { PolicyView } from '../../../core/rules/compile.ts'
import { decide } from '../../../core/rules/decide.ts'
import { type Decision, exactly } from '../../../core/rules/decision.ts'
import { isShort, isShortItem } from '../../../core/rules/needs.ts'
import { fairShare } from './grants.ts'
import { CLOUD_CLIENTS, NOTHING_RETURNABLE, NO_SHORTAGES, type Returnable } from '../../storage/device-records.ts'
import { type Lack, isShortNow, noteLack, noteServed, returnableOf, shortTimes } from './rebalance.ts'
import type { EdgeTerms } from '../../devices/terms.ts'
import type { Decided, DecidedRequest, ShortageNotes } from '../../policy/decide-over-pools.ts'
import { type LoadedPolicy, reserveOf } from '../../policy/load-policy.ts'
import { free } from '../../accounts/pool.ts'
import type { Pool } from '../../storage/records.ts'
import type { Transaction } from '../../storage/store.ts'

/** Shortest interval between notes of an account, ms: repeated refusals are alike. */
const NOTE_AGAIN_MS = 1_000

const REMEMBERED_MAX = 1_000

export class CloudShortages implements ShortageNotes {
  readonly #terms: Pick<EdgeTerms, 'syncEveryMs' | 'grantHorizonMs'>
  /** The last notes of this node. Optional: another node, or a restart, notes again. */
  readonly #noted = new Map<AccountId, { readonly lacking: Micro; readonly at: number }>()

  constructor(terms: Pick<EdgeTerms, 'syncEveryMs' | 'grantHorizonMs'>) {
    this.#terms = terms
  }

  async note(tx: Transaction, loaded: LoadedPolicy, { requests, pools }: Decided, now: number): Promise<void> {
    await this.#noteServed(tx, requests, now)
    const short = requests.filter(({ decision }) => isShort(decision))
    // Returned tokens would not be sold either.
    if (short.length === 0 || loaded.unproven) return
    const context = { deps: { terms: this.#terms }, tx, now }
    const own = [...pools.keys()].filter((account) => parseAccount(account)?.instanceId === loaded.policy.instanceId)
    const returnable = await returnableOf(context, own, '')
    const policy = loaded.compiled.at(exactly(now))
    for (const [account, amount] of lackingOf(policy, short, pools, returnable)) {
      const pool = pools.get(account)
      if (pool === undefined || amount <= free(pool) || !this.#isNews(account, amount, now)) continue
      const lack = { pool, who: CLOUD_CLIENTS, lacking: amount }
      const others = returnable.get(account) ?? NOTHING_RETURNABLE
      await noteCloudLack(context, loaded, { ...lack, returnable: others })
    }
  }

  #isNews(account: AccountId, lacking: Micro, now: number): boolean {
    const before = this.#noted.get(account)
    const isRecent = before !== undefined && before.at <= now && now - before.at < NOTE_AGAIN_MS
    if (isRecent && lacking <= before.lacking) return false
    if (this.#noted.size >= REMEMBERED_MAX) this.#noted.clear()
    this.#noted.set(account, { lacking, at: now })
    return true
  }

  async #noteServed(tx: Transaction, requests: readonly DecidedRequest[], now: number): Promise<void> {
    if (this.#noted.size === 0) return
    const paid = new Set(requests.flatMap(({ decision }) => decision.postings.map(({ account }) => account)))
    const accounts = [...paid].filter((account) => this.#noted.delete(account))
    if (accounts.length === 0) return
    for (const { own } of (
      await tx.edge.shortages.of(accounts, shortTimes(now, this.#terms), CLOUD_CLIENTS)
    ).values()) {
      if (own !== undefined) await noteServed(tx, own, now)
    }
  }
}

/** Of several line items, those whose devices can return tokens soon pay first. */
function lackingOf(
  policy: PolicyView,
  requests: readonly DecidedRequest[],
  pools: ReadonlyMap<AccountId, Pool>,
  returnable: ReadonlyMap<AccountId, Returnable>,
): ReadonlyMap<AccountId, Micro> {
  const taken = new Map<AccountId, Micro>()
  for (const { request, mode, decision } of requests) {
    // Granted items are charged already.
    const items = mode === 'ALL_OR_NOTHING' ? request.items : request.items.filter((_, n) => isShortAt(decision, n))
    const decideWith = (from: keyof Returnable): Decision => {
      const availableOf = (account: AccountId) => {
        const pool = pools.get(account)
        const others = returnable.get(account) ?? NOTHING_RETURNABLE
        const left = pool === undefined ? 0n : free(pool) + others[from] - (taken.get(account) ?? 0n)
        return { left: left > 0n ? left : 0n, shortage: 'POOL' } as const
      }
      return decide(policy, { ...request, items }, availableOf, mode)
    }
    const soon = decideWith('inContact')
    for (const { account, amount } of (isShort(soon) ? decideWith('all') : soon).postings) {
      taken.set(account, (taken.get(account) ?? 0n) + amount)
    }
  }
  return taken
}

function isShortAt({ items }: Decision, index: number): boolean {
  const item = items[index]
  return item !== undefined && isShortItem(item)
}

interface NotingContext {
  readonly deps: { readonly terms: Pick<EdgeTerms, 'syncEveryMs' | 'grantHorizonMs'> }
  readonly tx: Transaction
  readonly now: number
}

/** Notes that the cloud needs this many free tokens. The pool must be locked. */
export async function noteCloudLack(
  context: NotingContext,
  loaded: Pick<LoadedPolicy, 'cloudReserves' | 'importedUse'>,
  { pool, who, lacking, returnable }: Pick<Lack, 'pool' | 'who' | 'lacking' | 'returnable'>,
): Promise<void> {
  const { tx, now, deps } = context
  const { terms } = deps
  const parsed = parseAccount(pool.account)
  if (parsed === undefined) throw new Error('invariant: an account id is one that core made')
  const devices = await tx.edge.devices.countLive(parsed.instanceId, now - terms.grantHorizonMs, '')
  const share = fairShare(pool, reserveOf(pool.account, loaded), devices)
  const known = await tx.edge.shortages.of([pool.account], shortTimes(now, terms), who)
  const noted = known.get(pool.account) ?? NO_SHORTAGES
  const usable = free(pool)
  // Other refused clients may retry too: the largest request counts.
  const { own } = noted
  const isSame = own !== undefined && who === CLOUD_CLIENTS && isShortNow(own, now, terms)
  const before = isSame ? own.lacking : 0n
  const most = before > lacking && before <= usable + returnable.all ? before : lacking
  const lack = { pool, who, deviceId: null, lacking: most, recalled: most - usable, usable, share, returnable, noted }
  await noteLack(context, lack)
}
