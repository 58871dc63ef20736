import type { Reader, Transaction } from '../store.ts'
import { accountReader, accountTransaction } from './accounts.ts'
import { actionReader, actionTransaction } from './actions.ts'
import { conditionReader, conditionTransaction } from './conditions.ts'
import { configurationReader, configurationTransaction } from './configuration.ts'
import { consumptionLimitReader, consumptionLimitTransaction } from './consumption-limits.ts'
import { edgeReader, edgeTransaction } from './edge.ts'
import { instanceReader, instanceTransaction } from './instances.ts'
import { keyReader, keyTransaction } from './keys.ts'
import { lineItemReader, lineItemTransaction } from './line-items.ts'
import { outboxTransaction } from './outbox.ts'
import { policyRevisionReader, policyRevisionTransaction } from './policy-revisions.ts'
import { rateTableReader, rateTableTransaction } from './rate-tables.ts'
import { sessionReader, sessionTransaction } from './sessions.ts'
import type { Sql } from './sql.ts'
import { sweepReader, sweepTransaction } from './sweeps.ts'
import { totalsReader } from './totals.ts'
import { usageReader, usageTransaction } from './usage.ts'

export function readerOf(sql: Sql): Reader {
  return {
    instances: instanceReader(sql),
    lineItems: lineItemReader(sql),
    actions: actionReader(sql),
    conditions: conditionReader(sql),
    rateTables: rateTableReader(sql),
    consumptionLimits: consumptionLimitReader(sql),
    keys: keyReader(sql),
    configuration: configurationReader(sql),
    accounts: accountReader(sql),
    usage: usageReader(sql),
    policyRevisions: policyRevisionReader(sql),
    sessions: sessionReader(sql),
    edge: edgeReader(sql),
    sweeps: sweepReader(sql),
    totals: totalsReader(sql),
  }
}

/** @param outboxWritten called when the transaction writes to the outbox */
export async function runWork<T>(
  sql: Sql,
  work: (tx: Transaction) => Promise<T>,
  outboxWritten: () => void,
): Promise<T> {
  const { accounts, lockAhead } = accountTransaction(sql)
  const { usage, write } = usageTransaction(sql)
  const result = await work({
    instances: instanceTransaction(sql),
    lineItems: lineItemTransaction(sql),
    actions: actionTransaction(sql),
    conditions: conditionTransaction(sql),
    rateTables: rateTableTransaction(sql),
    consumptionLimits: consumptionLimitTransaction(sql),
    keys: keyTransaction(sql),
    configuration: configurationTransaction(sql),
    accounts,
    usage,
    policyRevisions: policyRevisionTransaction(sql, lockAhead),
    sessions: sessionTransaction(sql),
    outbox: outboxTransaction(sql, outboxWritten),
    edge: edgeTransaction(sql),
    sweeps: sweepTransaction(sql),
    totals: totalsReader(sql),
  })
  await write()
  return result
}
