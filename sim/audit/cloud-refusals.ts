/**
 * The cloud refuses nothing for lack of tokens that its accounts have: one-off requests, requests of sessions, and the
 * charges of their next intervals. A plain evaluator decides again on the balances that the decision has left.
 */
import type Sqlite from 'better-sqlite3'
import type { AvailableBalance } from '../../src/core/rules/decision.ts'
import type { Policy } from '../../src/core/rules/policy.ts'
import type { UsageRecord } from '../../src/cloud/storage/records.ts'
import { naiveDecide } from '../../test/core/rules/naive-evaluator.ts'
import type { MetaData } from '../request-body.ts'
import { query } from './query.ts'
import { type AccountRow, lineOf, sellsNothing } from './records.ts'
import { SHORT } from './reference.ts'
import type { SharedState } from './shared-state.ts'
import { Violation } from './violation.ts'

export class CloudRefusalAudit {
  readonly #shared: SharedState

  constructor(shared: SharedState) {
    this.#shared = shared
  }

  /**
   * @param database in the transaction that has made the decision
   * @param records of the decision
   */
  check(database: Sqlite.Database, records: readonly UsageRecord[], rules: Policy): void {
    const short = records.filter(({ status }) => SHORT.has(status))
    const [first] = short
    if (first === undefined || sellsNothing(database)) return
    this.#shared.look('REFUSAL')
    const availableOf = (account: string): AvailableBalance => balanceOf(database, rules, account)
    const { usageTime: now, requesterType: type, requesterValue: value, source, correlationId } = first
    const clock = { now, earliest: now, latest: now }
    const [mode, requests] =
      source.kind === 'session'
        ? (['ALL_OR_NOTHING', [records]] as const)
        : (['BEST_EFFORT', short.map((each) => [each])] as const)
    for (const items of requests) {
      const request = {
        requester: { type, value, dictionary: dictionaryOf(first) },
        items: items.map(({ item: name, version, count }) => ({ name, version, count })),
      }
      const decision = naiveDecide(rules, request, clock, availableOf, mode)
      if (!decision.items.every(({ outcome }) => outcome === 'GRANTED')) continue
      const refused = items.map(({ item, status }) => `${item} with ${status}`).join(', ')
      const left = decision.postings.map(({ account, amount }) => {
        return `${amount} of the ${String(availableOf(account).left)} of ${account}`
      })
      throw new Violation('REFUSAL', `the twin refuses ${refused} (${correlationId}), which takes ${left.join(', ')}`)
    }
  }
}

function dictionaryOf({ metaData }: UsageRecord): MetaData['dictionary'] {
  return (JSON.parse(metaData ?? '{}') as Partial<MetaData>).dictionary ?? {}
}

function balanceOf(database: Sqlite.Database, rules: Policy, account: string): AvailableBalance {
  const row = query(database, 'SELECT * FROM accounts WHERE id = ?').get(account) as AccountRow | undefined
  const cap = row === undefined ? capOf(rules, account) : row.cap_target
  if (cap === null) return { left: 'UNLIMITED', shortage: 'POOL' }
  const left = row === undefined ? cap : cap - row.withheld - row.charged - row.granted_out
  return { left: left > 0n ? left : 0n, shortage: 'POOL' }
}

/** Of an account that was never used. Null: none. */
function capOf({ lineItems }: Policy, account: string): bigint | null {
  const [kind, , , third = ''] = account.split('/').map(decodeURIComponent)
  const lineItem = lineItems.find(({ id }) => id === lineOf(account))
  if (lineItem === undefined) return 0n
  const { quantity, overdraft, actions, consumptionLimit } = lineItem
  if (kind === 'action') return actions.find(({ id }) => id === third)?.allocation ?? 0n
  if (kind === 'limit') return consumptionLimit?.limit ?? 0n
  return overdraft === 'UNLIMITED' ? null : quantity + overdraft
}
