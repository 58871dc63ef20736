/**
 * The decision inputs that the ledger entry lacks. With the rules of that revision they reproduce the decision exactly.
 * They stay on the device. Each decision writes this text, so accounts are left out: a replay requests them in the same
 * sequence.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Requester, AvailableBalance, AvailableOf } from '../../core/rules/decision.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'

export class BalancesSeen {
  readonly #balances = new Map<AccountId, AvailableBalance>()
  readonly #availableOf: AvailableOf

  constructor(availableOf: AvailableOf) {
    this.#availableOf = availableOf
  }

  readonly of: AvailableOf = (account) => {
    const known = this.#balances.get(account)
    if (known !== undefined) return known
    const balance = this.#availableOf(account)
    this.#balances.set(account, balance)
    return balance
  }

  accounts(): Iterable<AccountId> {
    return this.#balances.keys()
  }

  balances(): Iterable<AvailableBalance> {
    return this.#balances.values()
  }
}

export interface DecisionInputs {
  /** Null: an automatic charge of a session, without a caller. */
  readonly apiVersion: ApiVersion | null
  readonly balances: readonly AvailableBalance[]
  readonly dictionary: Requester['dictionary']
}

const VERSION_MARK = { 'v1.0': '0', 'v1.1': '1' } as const
const SHORTAGE_MARK = { POOL: 'P', GRANT: 'G', GRANT_EXPIRED: 'X', RECOVERY: 'R' } as const
const SHORTAGES = { P: 'POOL', G: 'GRANT', X: 'GRANT_EXPIRED', R: 'RECOVERY' } as const
const NOBODY = '-'
const UNLIMITED = '*'

/** `version;balance,balance...;dictionary`. A balance: amount left, a letter for its shortage, overspend if any. */
export function decisionInputsText(
  apiVersion: ApiVersion | null,
  seen: BalancesSeen,
  dictionary: Requester['dictionary'],
): string {
  let rooms = ''
  for (const { left, shortage, overspend } of seen.balances()) {
    if (rooms !== '') rooms += ','
    rooms += `${left === 'UNLIMITED' ? UNLIMITED : left}${SHORTAGE_MARK[shortage]}`
    if (overspend !== undefined) rooms += `+${overspend}`
  }
  const keys = Object.keys(dictionary).length === 0 ? '' : JSON.stringify(dictionary)
  return `${apiVersion === null ? NOBODY : VERSION_MARK[apiVersion]};${rooms};${keys}`
}

const TEXT = /^([01-]);([^;]*);(.*)$/s
const ROOM = /^(\*|\d{1,19})([PGXR])(?:\+(\d{1,19}))?$/

/** Undefined for a text that {@link decisionInputsText} did not make. */
export function parseDecisionInputs(text: string): DecisionInputs | undefined {
  const match = TEXT.exec(text)
  if (match === null) return undefined
  const [, mark = '', balancesText = '', keys = ''] = match
  const balances: AvailableBalance[] = []
  for (const each of balancesText === '' ? [] : balancesText.split(',')) {
    const parts = ROOM.exec(each)
    if (parts === null) return undefined
    const [, left = '', letter, overspend] = parts
    balances.push({
      left: left === UNLIMITED ? 'UNLIMITED' : BigInt(left),
      shortage: SHORTAGES[letter as keyof typeof SHORTAGES],
      ...(overspend === undefined ? {} : { overspend: BigInt(overspend) }),
    })
  }
  let dictionary: unknown
  try {
    dictionary = keys === '' ? {} : JSON.parse(keys)
  } catch {
    return undefined
  }
  if (typeof dictionary !== 'object' || dictionary === null || Array.isArray(dictionary)) return undefined
  return {
    apiVersion: mark === NOBODY ? null : mark === '0' ? 'v1.0' : 'v1.1',
    balances,
    dictionary: dictionary as Requester['dictionary'],
  }
}
