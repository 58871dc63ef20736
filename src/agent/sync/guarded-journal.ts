/**
 * The journal with its two kinds of failure told apart: what was surely not recorded is tried again later; anything else
 * leaves it unknown what stands on the disk, and the process must stop and open again.
 */
import { CodedError } from '../../protocol/errors.ts'
import type { LinkJournal } from './ports.ts'

/** Not a CodedError on purpose: nobody may take it for a refusal and go on. */
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
