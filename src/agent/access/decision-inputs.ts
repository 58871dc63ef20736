/**
 * The facts of a decision that its ledger entry does not hold: what the accounts could give, what conditions looked at, and
 * in which version of the interface it was answered. With the rules of that revision they make the same decision again,
 * bit for bit. They stay on the device and are no part of what is hashed, sent or billed. Each decision waits for this text
 * and pays for its bytes, so accounts are not named: the rules ask for them in one order, and so does a replay.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Requester, AvailableBalance, AvailableOf } from '../../core/rules/decision.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'

/** A view of rooms that remembers what it gave, in the order in which accounts were first asked for. */
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

/** What {@link parseDecisionInputs} gives back. */
export interface DecisionInputs {
  /** Null: nobody asked, such as for an automatic charge of a session. */
  readonly apiVersion: ApiVersion | null
  readonly balances: readonly AvailableBalance[]
  readonly dictionary: Requester['dictionary']
}

const VERSION_MARK = { 'v1.0': '0', 'v1.1': '1' } as const
const SHORTAGE_MARK = { POOL: 'P', GRANT: 'G', GRANT_EXPIRED: 'X', RECOVERY: 'R' } as const
const SHORTAGES = { P: 'POOL', G: 'GRANT', X: 'GRANT_EXPIRED', R: 'RECOVERY' } as const
const NOBODY = '-'
const UNLIMITED = '*'

/** `version;room,room...;dictionary`: a room is what is left, a letter for its shortage, and its overspend if any. */
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
