import type { Snapshot } from '../../src/agent/app/journal.ts'
import { CHAIN_START } from '../../src/protocol/signing.ts'

/** The journal of a device that has just attached for the first time. */
export function newLedger(): Snapshot {
  return {
    identity: null,
    incarnation: 1,
    fenced: false,
    accounts: new Map(),
    grant: null,
    policies: [],
    lastEntry: 0,
    entryHead: CHAIN_START,
    openBlocks: new Map(),
    burned: new Map(),
    lastSealedEntry: 0,
    remnants: 0,
    lastAnswers: [],
    sessions: [],
    unacknowledged: null,
    lastSeq: 0,
    highestIncarnation: 1,
    clock: null,
  }
}
