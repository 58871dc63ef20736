import type { EdgeReader, EdgeTransaction } from '../device-store.ts'
import { cloudReserveReader, cloudReserveTransaction } from './edge-cloud-reserves.ts'
import { auditReader, auditTransaction } from './edge-audit.ts'
import { deviceReader, deviceTransaction, enrollmentReader, enrollmentTransaction } from './edge-devices.ts'
import { deviceAccountReader, deviceAccountTransaction, poolsOf } from './edge-accounts.ts'
import { epochReader, epochTransaction } from './edge-epochs.ts'
import { offlinePolicyReader, offlinePolicyTransaction } from './edge-offline-policies.ts'
import { policyDocumentReader, policyDocumentTransaction } from './edge-policy-documents.ts'
import {
  entryReader,
  entryTransaction,
  evidenceReader,
  evidenceTransaction,
  segmentReader,
  segmentTransaction,
} from './edge-segments.ts'
import { signingKeyReader, signingKeyTransaction } from './edge-signing-key.ts'
import { recoveryReader, recoveryTransaction } from './edge-recoveries.ts'
import { sessionCommandTransaction } from './edge-session-commands.ts'
import { shortageReader, shortageTransaction } from './edge-shortages.ts'
import { salesMarkReader, salesMarkTransaction } from './sales-marks.ts'
import type { Sql } from './sql.ts'

export function edgeReader(sql: Sql): EdgeReader {
  return {
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
    pools: poolsOf(sql),
    offlinePolicies: offlinePolicyReader(sql),
    cloudReserves: cloudReserveReader(sql),
    policyDocuments: policyDocumentReader(sql),
    audit: auditReader(sql),
    signingKey: signingKeyReader(sql),
  }
}

export function edgeTransaction(sql: Sql): EdgeTransaction {
  return {
    devices: deviceTransaction(sql),
    enrollments: enrollmentTransaction(sql),
    epochs: epochTransaction(sql),
    segments: segmentTransaction(sql),
    evidence: evidenceTransaction(sql),
    entries: entryTransaction(sql),
    deviceAccounts: deviceAccountTransaction(sql),
    shortages: shortageTransaction(sql),
    sessionCommands: sessionCommandTransaction(sql),
    recoveries: recoveryTransaction(sql),
    salesMarks: salesMarkTransaction(sql),
    pools: poolsOf(sql),
    offlinePolicies: offlinePolicyTransaction(sql),
    cloudReserves: cloudReserveTransaction(sql),
    policyDocuments: policyDocumentTransaction(sql),
    audit: auditTransaction(sql),
    signingKey: signingKeyTransaction(sql),
  }
}
