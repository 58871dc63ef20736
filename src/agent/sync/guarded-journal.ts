/**
 * Distinguishes the journal's failures: NOT_RECORDED is retried later; after any other error the outcome is unknown and
 * the process must stop and reopen.
 */
import { CodedError } from '../../protocol/errors.ts'
import type { LinkJournal } from './ports.ts'

/** Not a CodedError, so that it cannot be handled as a refusal. */
class JournalLost extends Error {
  constructor(cause: unknown) {
    super('the outcome of a write to the journal is unknown', { cause })
    this.name = 'JournalLost'
  }
}

export function guardJournal(journal: LinkJournal): LinkJournal {
  return {
    seal: guard(async (order) => journal.seal(order)),
    sealed: guard(async (seq) => journal.sealed(seq)),
    sealedEarlier: guard(async (after) => journal.sealedEarlier(after)),
    proofs: guard(async () => journal.proofs()),
    acknowledge: guard(async (seq, grant, confirmation, answer) =>
      journal.acknowledge(seq, grant, confirmation, answer),
    ),
    fence: guard(async () => journal.fence()),
    attach: guard(async (epoch, leaving) => journal.attach(epoch, leaving)),
    saveIdentity: guard(async (identity) => journal.saveIdentity(identity)),
    savePolicy: guard(async (policy, trustedKeys) => journal.savePolicy(policy, trustedKeys)),
  }
}

function guard<A extends readonly unknown[], R>(call: (...args: A) => Promise<R>): (...args: A) => Promise<R> {
  return async (...args) => {
    try {
      return await call(...args)
    } catch (error) {
      if (error instanceof CodedError && error.code === 'NOT_RECORDED') throw error
      throw new JournalLost(error)
    }
  }
}
