import { accountReader, accountTransaction } from './accounts.ts'
import { actionReader, actionTransaction } from './actions.ts'
import { cellReader, cellTransaction } from './cell.ts'
import { conditionReader, conditionTransaction } from './conditions.ts'
import { configurationReader, configurationTransaction } from './configuration.ts'
import { consumptionLimitReader, consumptionLimitTransaction } from './consumption-limits.ts'
import {
  cloudReserveReader,
  cloudReserveTransaction,
  offlinePolicyReader,
  offlinePolicyTransaction,
} from './edge-line-items.ts'
import { CLOUD } from '../audit-records.ts'
import { auditReader, auditTransaction } from './edge-audit.ts'
import { deviceReader, deviceTransaction, enrollmentReader, enrollmentTransaction } from './edge-devices.ts'
import { deviceAccountReader, deviceAccountTransaction } from './edge-accounts.ts'
import { epochReader, epochTransaction } from './edge-epochs.ts'
import {
  policyDocumentReader,
  policyDocumentTransaction,
  policyRevisionReader,
  policyRevisionTransaction,
} from './policy-revisions.ts'
import { entryReader, evidenceReader, evidenceTransaction, segmentReader, segmentTransaction } from './edge-segments.ts'
import { signingKeyReader, signingKeyTransaction, keyReader, keyTransaction } from './keys.ts'
import { recoveryReader, recoveryTransaction } from './edge-recoveries.ts'
import { sessionCommandTransaction, sessionReader, sessionTransaction } from './sessions.ts'
import { shortageReader, shortageTransaction } from './edge-shortages.ts'
import { salesMarkReader, salesMarkTransaction } from './sales-marks.ts'
import { eventReader, eventTransaction } from './events.ts'
import { eventSinkReader, eventSinkTransaction } from './event-sinks.ts'
import { idempotencyTransaction } from './idempotency.ts'
import { importedUseReader, importedUseTransaction } from './imported-use.ts'
import { instanceReader, instanceTransaction } from './instances.ts'
import { lineItemReader, lineItemTransaction } from './line-items.ts'
import { outboxTransaction } from './outbox.ts'
import { rateTableReader, rateTableTransaction } from './rate-tables.ts'
import type { Sql } from './sql.ts'
import { sweepReader, sweepTransaction } from './sweeps.ts'
import { totalsOf } from './totals.ts'
import { usageReader } from './read-usage.ts'
import { usageTransaction } from './usage.ts'
import { usageArchiveReader, usageArchiveTransaction } from './usage-archives.ts'

export function readerOf(sql: Sql) {
  return {
    instances: instanceReader(sql),
    lineItems: lineItemReader(sql),
    actions: actionReader(sql),
    conditions: conditionReader(sql),
    rateTables: rateTableReader(sql),
    consumptionLimits: consumptionLimitReader(sql),
    keys: keyReader(sql),
    configuration: configurationReader(sql),
    cell: cellReader(sql),
    accounts: accountReader(sql),
    importedUse: importedUseReader(sql),
    usage: usageReader(sql),
    events: eventReader(sql),
    eventSinks: eventSinkReader(sql),
    usageArchives: usageArchiveReader(sql),
    policyRevisions: policyRevisionReader(sql),
    sessions: sessionReader(sql),
    edge: {
      devices: deviceReader(sql),
      enrollments: enrollmentReader(sql),
      epochs: epochReader(sql),
      segments: segmentReader(sql),
      evidence: evidenceReader(sql),
      entries: entryReader(sql),
      deviceAccounts: deviceAccountReader(sql),
      shortages: shortageReader(sql),
      recoveries: recoveryReader(sql),
      salesMarks: salesMarkReader(sql),
      offlinePolicies: offlinePolicyReader(sql),
      cloudReserves: cloudReserveReader(sql),
      policyDocuments: policyDocumentReader(sql),
      audit: auditReader(sql),
      signingKey: signingKeyReader(sql),
    },
    sweeps: sweepReader(sql),
    totals: totalsOf(sql),
  }
}

/** What the store must know of a transaction when its work has ended. */
export interface Written {
  /** Whether it has written to this table. */
  outbox: boolean
  /** Whether it has changed registered keys. */
  keys: boolean
  /** How many requests wait for it. */
  requests: number
}

/** What keeps nothing of a transaction, so that it serves all transactions on the connection. */
function lastingPartsOf(sql: Sql) {
  return {
    /** Whose changes the audit records. */
    actor: CLOUD,
    instances: instanceTransaction(sql),
    lineItems: lineItemTransaction(sql),
    actions: actionTransaction(sql),
    conditions: conditionTransaction(sql),
    rateTables: rateTableTransaction(sql),
    consumptionLimits: consumptionLimitTransaction(sql),
    configuration: configurationTransaction(sql),
    cell: cellTransaction(sql),
    importedUse: importedUseTransaction(sql),
    eventSinks: eventSinkTransaction(sql),
    usageArchives: usageArchiveTransaction(sql),
    sessions: sessionTransaction(sql),
    idempotency: idempotencyTransaction(sql),
    edge: {
      devices: deviceTransaction(sql),
      enrollments: enrollmentTransaction(sql),
      epochs: epochTransaction(sql),
      segments: segmentTransaction(sql),
      evidence: evidenceTransaction(sql),
      entries: entryReader(sql),
      deviceAccounts: deviceAccountTransaction(sql),
      shortages: shortageTransaction(sql),
      sessionCommands: sessionCommandTransaction(sql),
      recoveries: recoveryTransaction(sql),
      salesMarks: salesMarkTransaction(sql),
      offlinePolicies: offlinePolicyTransaction(sql),
      cloudReserves: cloudReserveTransaction(sql),
      policyDocuments: policyDocumentTransaction(sql),
      audit: auditTransaction(sql),
      signingKey: signingKeyTransaction(sql),
    },
    sweeps: sweepTransaction(sql),
    totals: totalsOf(sql),
  }
}

function transactionOf(sql: Sql, lasting: ReturnType<typeof lastingPartsOf>, written: Written) {
  const { accounts, lockAhead } = accountTransaction(sql)
  const { usage, events, write } = usageTransaction(sql)
  const tx = {
    ...lasting,
    /** Call if another number of requests than one wait for it. */
    serves: (requests: number): void => void (written.requests = requests),
    keys: keyTransaction(sql, () => (written.keys = true)),
    accounts,
    usage,
    // `append` is made with the usage records: both share one sequence of numbers.
    events: { ...eventTransaction(sql), ...events },
    policyRevisions: policyRevisionTransaction(sql, lockAhead),
    outbox: outboxTransaction(sql, () => (written.outbox = true)),
  }
  return { tx, write }
}

export type Transaction = ReturnType<typeof transactionOf>['tx']

/** Runs the work of transactions on a connection, one after another. */
export function workOn(sql: Sql) {
  const lasting = lastingPartsOf(sql)
  return async <T>(work: (tx: Transaction) => Promise<T>, written: Written): Promise<T> => {
    const { tx, write } = transactionOf(sql, lasting, written)
    const result = await work(tx)
    await write()
    return result
  }
}
