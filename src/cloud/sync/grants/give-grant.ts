/** Books a grant sized by `grants.ts` in the transaction of the merge, and notes what the device still lacks. */
import { type AccountId, instanceIdOf } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { type TopUps, available, sumPostings } from '../../../core/accounts/grant.ts'
import type { Grant } from '../../../protocol/edge/sync.ts'
import type { MovedPools } from '../../accounts/move-pools.ts'
import { freeForDevices } from '../../accounts/pool.ts'
import type { Pool } from '../../storage/records.ts'
import {
  type RequestedAccount,
  type Grantable,
  type Granting,
  fairShare,
  grantRequested,
  lastUsableAt,
  quantityOf,
} from './grants.ts'
import {
  type Device,
  type DeviceAccountRecord,
  type Epoch,
  NOTHING_RETURNABLE,
  NO_SHORTAGES,
  type Returnable,
  type Shortage,
  type Shortages,
} from '../../storage/device-records.ts'
import { type RulesInForce, reserveInForce } from '../../policy/rules-in-force.ts'
import {
  type Lack,
  type ShortageTransaction,
  isShortNow,
  noteLack,
  noteServed,
  returnableOf,
  shortTimes,
  spareFor,
} from './rebalance.ts'
import type { Transaction } from '../../storage/store.ts'
import type { MergeContext } from '../merge-context.ts'
import type { EdgeTerms } from '../../devices/terms.ts'

export function accountsIn({ topUpRequests, needs }: TopUps): readonly AccountId[] {
  return [...new Set([...topUpRequests, ...needs.flat()].map(({ account }) => account))]
}

export function grantableIn(topUps: TopUps, grantable: Grantable): readonly AccountId[] {
  return accountsIn(topUps).filter((account) => grantable(account) !== undefined)
}

export async function mustRelease({ tx, device, epoch }: MergeContext): Promise<boolean> {
  return device.releaseRequested && (await tx.edge.deviceAccounts.hasLeft(device.id, epoch.number))
}

export interface GrantInputs {
  readonly rules: RulesInForce
  readonly grantable: Grantable
  readonly topUps: TopUps
  /** The grant reports them, whether they are requested or not. */
  readonly named: readonly AccountId[]
  /** Locked: of all accounts that the grant reports. */
  readonly pools: ReadonlyMap<AccountId, Pool>
  readonly recordOf: (account: AccountId) => DeviceAccountRecord
  /** Accounts that the segment has charged. */
  readonly inUse: ReadonlySet<AccountId>
  /** The device has to return its tokens, so it gets none. */
  readonly releasing: boolean
  /** Changes of the same accounts that are saved together with the grant. */
  readonly unsaved: Pick<MovedPools, 'moves' | 'after'>
}

export interface GrantContext {
  readonly deps: { readonly terms: Pick<EdgeTerms, 'syncEveryMs' | 'grantHorizonMs' | 'grantLifetimeMs'> }
  readonly tx: ShortageTransaction & {
    readonly accounts: Pick<Transaction['accounts'], 'save'>
    readonly edge: {
      readonly devices: Pick<Transaction['edge']['devices'], 'countLive'>
      readonly deviceAccounts: Pick<Transaction['edge']['deviceAccounts'], 'save'>
    }
  }
  readonly device: Pick<Device, 'id'>
  readonly epoch: Pick<Epoch, 'deviceId' | 'number' | 'term'>
  readonly now: number
}

export async function giveGrant(grantContext: GrantContext, inputs: GrantInputs): Promise<Grant> {
  const context: Context = { ...grantContext, ...inputs }
  const { deps, tx, device, epoch, now, rules, grantable, topUps, releasing } = context
  const { terms } = deps
  const known = await tx.edge.shortages.of(grantableIn(topUps, grantable), shortTimes(now, terms), device.id)
  const requested = await requestedAccounts(context, known)
  const granting = grantRequested(requested, topUps, (account) => quantityOf(account, grantable))
  const { moves, after } = inputs.unsaved
  const moved = moves.map((move) => [move.after.account, move.after] as const)
  const granted = granting.accounts.map((record) => [record.account, record] as const)
  await tx.accounts.save([...new Map([...after, ...granting.pools]).values()])
  await tx.edge.deviceAccounts.save([...new Map([...moved, ...granted]).values()])
  const returnable = await returnableOf(context, lackedIn(requested, granting, inputs.inUse), device.id)
  if (!releasing) await noteShortages(context, requested, granting, { known, returnable })
  const lifetimeMs = Math.max(0, Math.min(terms.grantLifetimeMs, (lastUsableAt(rules) ?? Infinity) - now))
  return {
    // Grows with time, so that a restored cloud continues above every lost term.
    term: Math.max(epoch.term + 1, now),
    lifetimeMs,
    expiresAt: now + lifetimeMs,
    accounts: granting.unmet.length > 0 ? granting.wire.map((each) => withReturnable(each, returnable)) : granting.wire,
  }
}

/** Accounts for which the device may get more tokens when other devices return some. */
function lackedIn(
  requested: ReadonlyMap<AccountId, RequestedAccount>,
  granting: Granting,
  inUse: ReadonlySet<AccountId>,
): readonly AccountId[] {
  const isUnmet = granting.unmet.length > 0
  return [...requested.values()]
    .filter(({ pool, mustReturn, isUnproven }) => pool.capTarget !== null && !mustReturn && !isUnproven)
    .filter((each) => isUnmet || (inUse.has(each.account) && inAdvanceOf(each, granting) > 0n))
    .map(({ account }) => account)
}

function withReturnable(
  account: Grant['accounts'][number],
  returnable: ReadonlyMap<AccountId, Returnable>,
): Grant['accounts'][number] {
  const { inContact } = returnable.get(account.account) ?? NOTHING_RETURNABLE
  return inContact > 0n ? { ...account, returnable: inContact } : account
}

type Context = GrantContext & GrantInputs

type Known = ReadonlyMap<AccountId, Shortages>

async function requestedAccounts(
  { deps, tx, device, now, rules, grantable, topUps, named, pools, recordOf, inUse, releasing }: Context,
  known: Known,
): Promise<ReadonlyMap<AccountId, RequestedAccount>> {
  const accounts = new Set([...grantableIn(topUps, grantable), ...named])
  const others = new Map<string, number>()
  for (const instanceId of new Set([...accounts].map((account) => instanceIdOf(account)))) {
    const since = now - deps.terms.grantHorizonMs
    others.set(instanceId, await tx.edge.devices.countLive(instanceId, since, device.id))
  }
  const wanted = new Map(topUps.topUpRequests.map((topUpRequest) => [topUpRequest.account, topUpRequest.wanted]))
  const requested = new Map<AccountId, RequestedAccount>()
  for (const account of accounts) {
    const pool = pools.get(account)
    if (pool === undefined) throw new Error('invariant: the pool of an account that a grant names was opened')
    const reserved = reserveInForce(account, rules)
    const share = fairShare(pool, reserved, (others.get(instanceIdOf(account)) ?? 0) + 1)
    const target = { wanted: wanted.get(account) ?? 0n, share }
    const usable = freeForDevices(pool, reserved)
    const asking = { isInUse: inUse.has(account), ...target, usable, noted: known.get(account) ?? NO_SHORTAGES }
    const spare = spareFor(asking, now)
    const isUnproven = rules.get(instanceIdOf(account))?.unproven === true
    const own = { record: recordOf(account), mustReturn: releasing, isUnproven }
    requested.set(account, { account, pool, reserved, ...own, ...target, spare })
  }
  return requested
}

async function noteShortages(
  context: Context,
  requested: ReadonlyMap<AccountId, RequestedAccount>,
  granting: Granting,
  others: { readonly known: Known; readonly returnable: ReadonlyMap<AccountId, Returnable> },
): Promise<void> {
  const { deps, tx, device, now, topUps } = context
  const waitedFor = new Set(topUps.needs.flat().map(({ account }) => account))
  for (const each of requested.values()) {
    const { account, pool: before, reserved, share } = each
    if (before.capTarget === null) continue
    const noted = others.known.get(account) ?? NO_SHORTAGES
    // A refused client will retry: a sync without its request does not mean that it was served.
    if (isLacking(noted.own, now, deps.terms) && !waitedFor.has(account)) continue
    const pool = granting.pools.get(account) ?? before
    const usable = freeForDevices(pool, reserved)
    const returnable = others.returnable.get(account) ?? NOTHING_RETURNABLE
    const amounts = missingOf(context, each, granting, { usable, returnable })
    if (amounts !== undefined) {
      const lack = { pool, who: device.id, deviceId: device.id, usable, share, returnable, noted }
      await noteLack(context, { ...lack, ...amounts })
    } else if (noted.own !== undefined) {
      await noteServed(tx, noted.own, now)
    }
  }
}

function isLacking(noted: Shortage | undefined, now: number, terms: Pick<EdgeTerms, 'syncEveryMs'>): boolean {
  return noted !== undefined && noted.lacking > 0n && isShortNow(noted, now, terms)
}

/** What unmet requests lack, or else what is missing in advance; undefined: nothing. */
function missingOf(
  { inUse }: Pick<Context, 'inUse'>,
  requested: RequestedAccount,
  granting: Granting,
  { usable, returnable }: Pick<Lack, 'usable' | 'returnable'>,
): Pick<Lack, 'lacking' | 'recalled'> | undefined {
  const { account, record } = requested
  const left = available(record) + (granting.granted.get(account) ?? 0n) - (granting.claimed.get(account) ?? 0n)
  const beyond = granting.unmet.map((need) => (sumPostings(need).get(account) ?? 0n) - left)
  const lacking = lackingOf(beyond, usable, usable + returnable.all)
  if (lacking > 0n) return { lacking, recalled: lacking > usable ? lacking - usable : 0n }
  const inAdvance = inAdvanceOf(requested, granting)
  if (inAdvance > 0n) return { lacking: 0n, recalled: inUse.has(account) ? inAdvance : 0n }
  return undefined
}

function inAdvanceOf({ account, record, wanted, share }: RequestedAccount, { granted }: Granting): Micro {
  const own = available(record) + (granted.get(account) ?? 0n)
  const lacking = (wanted < share ? wanted : share) - own
  return lacking > 0n ? lacking : 0n
}

/**
 * Free tokens that the unmet requests need together, as far as that many can become free; if none can be met, the need
 * of the smallest.
 * @param most free tokens plus everything other devices can return
 */
function lackingOf(unmet: readonly Micro[], usable: Micro, most: Micro): Micro {
  let lacking = 0n
  let smallest: Micro | undefined
  for (const amount of unmet) {
    // Another account blocks this request.
    if (amount <= usable) continue
    if (lacking + amount <= most) lacking += amount
    else if (smallest === undefined || amount < smallest) smallest = amount
  }
  return lacking > 0n ? lacking : (smallest ?? 0n)
}
