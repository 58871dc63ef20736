/**
 * Grants and confirmations, taken from the cloud's signed answers: an edited ledger spends nothing that was not signed.
 * Smaller values stay, because the rules may have limited an account since.
 */
import { z } from 'zod'
import { type AccountId, isLimitAccount } from '../../core/accounts/account.ts'
import { available } from '../../core/accounts/grant.ts'
import { type Grant, syncAnswer } from '../../protocol/edge/sync.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { unverifiedText } from '../../protocol/signing.ts'
import { Trust } from '../keys/trust.ts'
import type { AccountState, Identity, Snapshot, StoredGrant, StoredPolicy } from './journal.ts'

/** Of a policy document; its signature is checked when it is put in force. */
const policyTerms = z.object({ revision: z.int() })

type Proof = Grant['accounts'][number]

type Derived = Pick<Snapshot, 'accounts' | 'grant' | 'policies'>

export interface Edit {
  /** An account, `grant of epoch 1`, or `policy of <instance>`. */
  readonly where: string
  readonly field: string
  readonly stored: string
  /** Null: no signed document names it. */
  readonly signed: string | null
}

export interface SignedState {
  readonly accounts: ReadonlyMap<AccountId, Proof>
  readonly grant: Omit<StoredGrant, 'agedMs'> | null
  readonly confirmedAt: ReadonlyMap<string, number>
}

/** Includes the keys that the cloud has replaced. Throws on invalid keys. */
export function trustInAnswers({ trustedKeys, formerKeys = [] }: Pick<Identity, 'trustedKeys' | 'formerKeys'>) {
  return Trust.of([...trustedKeys, ...formerKeys])
}

/**
 * Ignores what is not signed for this device; grants of other epochs prove nothing.
 *
 * @param answers oldest first
 */
export async function openSigned(
  answers: Iterable<string>,
  trust: Trust,
  { deviceId, epoch }: { readonly deviceId: string; readonly epoch: number },
): Promise<SignedState> {
  const grants: Grant[] = []
  const confirmedAt = new Map<string, number>()
  for (const document of answers) {
    const answer = await trust.read('sync-answer', document, syncAnswer)
    if (answer?.outcome !== 'MERGED' || answer.deviceId !== deviceId) continue
    for (const policy of answer.policies) confirmedAt.set(policyKey(policy), answer.time)
    if (answer.epoch === epoch && answer.grant !== null) grants.push(answer.grant)
  }
  grants.sort((a, b) => a.term - b.term)
  const accounts = new Map<AccountId, Proof>()
  for (const { accounts: granted } of grants) {
    for (const each of granted) {
      const most = accounts.get(each.account)?.granted ?? 0n
      accounts.set(each.account, most > each.granted ? { ...each, granted: most } : each)
    }
  }
  const newest = grants.at(-1)
  const grant =
    newest === undefined ? null : { term: newest.term, lifetimeMs: newest.lifetimeMs, expiresAt: newest.expiresAt }
  return { accounts, grant, confirmedAt }
}

function policyKey({ instanceId, revision }: Pick<StoredPolicy, 'instanceId' | 'revision'>): string {
  return `${instanceId.toLowerCase()} ${revision}`
}

export function deriveState(
  { epoch, accounts, grant, policies }: Derived & Pick<Snapshot, 'epoch'>,
  signed: SignedState,
): Derived & { readonly edits: readonly Edit[] } {
  const edits: Edit[] = []
  const compare: Compare = (where, field, stored, proven) => {
    if (stored !== proven) {
      edits.push({ where, field, stored: String(stored), signed: proven === undefined ? null : String(proven) })
    }
  }
  const derived = new Map<AccountId, AccountState>()
  for (const [account, state] of accounts) {
    const named = signed.accounts.get(account)
    const isForgettable = mayLackProof(account, state)
    const proof = isForgettable && named !== undefined && named.granted < state.granted ? undefined : named
    derived.set(account, derivedAccount(state, proof))
    compareAccount(account, state, { proof, isForgettable }, compare)
  }
  for (const account of signed.accounts.keys()) {
    if (!accounts.has(account)) edits.push({ where: account, field: 'account', stored: 'missing', signed: 'granted' })
  }
  for (const field of ['term', 'lifetimeMs', 'expiresAt'] as const) {
    const isEmpty = grant === null && signed.grant === null
    if (!isEmpty) compare(`grant of epoch ${epoch}`, field, grant?.[field] ?? null, signed.grant?.[field])
  }
  const confirmed = policies.map((policy) => {
    const { instanceId, confirmedAt } = policy
    const where = `policy of ${instanceId}`
    const text = unverifiedText(policy.document)
    const revision = policyTerms.safeParse(text === undefined ? undefined : parseJson(text)).data?.revision
    compare(where, 'revision', policy.revision, revision)
    const proven = signed.confirmedAt.get(policyKey({ instanceId, revision: revision ?? policy.revision })) ?? 0
    compare(where, 'confirmedAt', confirmedAt, proven)
    return { ...policy, revision: revision ?? policy.revision, confirmedAt: Math.min(confirmedAt, proven) }
  })
  return { accounts: derived, grant: derivedGrant(grant, signed.grant), policies: confirmed, edits }
}

/**
 * The journal may delete the newest answer about a limit without balance, and keep an earlier one. A later refund gives the limit a
 * balance, but changes neither use nor grant.
 */
function mayLackProof(account: AccountId, { granted, used, returned }: AccountState): boolean {
  return isLimitAccount(account) && granted <= used + returned
}

type Value = bigint | number | boolean | null
type Compare = (where: string, field: string, stored: Value, proven: Value | undefined) => void

/** Without proof, an account is an edit if it has available tokens and cannot lack the proof. */
function compareAccount(
  account: AccountId,
  state: AccountState,
  { proof, isForgettable }: { readonly proof: Proof | undefined; readonly isForgettable: boolean },
  compare: Compare,
): void {
  if (proof === undefined) {
    if (state.unlimited) compare(account, 'unlimited', true, undefined)
    else if (available(state) > 0n && !isForgettable) compare(account, 'granted', state.granted, undefined)
    return
  }
  compare(account, 'granted', state.granted, proof.granted)
  if (!isForgettable) compare(account, 'exhausted', state.exhausted, proof.exhausted)
  compare(account, 'overdraft', state.overdraft ?? 0n, proof.overdraft ?? 0n)
  if (state.unlimited) compare(account, 'unlimited', true, proof.unlimited)
}

/** Without proof, an account has no available balance. */
function derivedAccount(state: AccountState, proof: Proof | undefined): AccountState {
  const { allowance: _, overdraft: __, ...rest } = state
  const spent = state.used - state.refunded + state.returned
  const unlimited = state.unlimited && proof?.unlimited === true
  const proven = proof?.granted ?? (spent > 0n ? spent : 0n)
  const granted = state.granted < proven ? state.granted : proven
  const allowance = spent > granted ? spent - granted : 0n
  const overdraft = proof?.overdraft ?? 0n
  return {
    ...rest,
    granted,
    unlimited,
    exhausted: proof?.exhausted ?? state.exhausted,
    ...(allowance > 0n ? { allowance } : {}),
    ...(overdraft > 0n ? { overdraft } : {}),
  }
}

/** Without proof, the grant has expired. */
function derivedGrant(stored: StoredGrant | null, signed: SignedState['grant']): StoredGrant | null {
  if (signed !== null) return { ...signed, agedMs: stored?.agedMs ?? 0 }
  return stored === null ? null : { ...stored, lifetimeMs: 0, expiresAt: 0 }
}

export function describeEdit({ where, field, stored, signed }: Edit): string {
  const proof = signed === null ? 'no signed document proves it' : `the cloud signed ${signed}`
  return `${where}: the ledger says ${field} ${stored}, ${proof}.`
}
