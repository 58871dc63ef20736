import type { Snapshot } from '../../src/agent/ledger/journal.ts'
import { CHAIN_START } from '../../src/protocol/signing.ts'

/** The journal after the first attach. */
export function newLedger(): Snapshot {
  return {
    identity: null,
    epoch: 1,
    fenced: false,
    accounts: new Map(),
    grant: null,
    policies: [],
    signedAnswers: [],
    lastEntry: 0,
    entryHead: CHAIN_START,
    openReservations: new Map(),
    burned: new Map(),
    lastSealedEntry: 0,
    undeliveredRanges: 0,
    idempotencyCache: [],
    sessions: [],
    unacknowledged: null,
    lastSeq: 0,
    highestEpoch: 1,
    clock: null,
  }
}
