import type { Journal } from '../ledger/journal.ts'
import type { Log } from '../../protocol/log.ts'

export type LinkJournal = Pick<
  Journal,
  'seal' | 'sealed' | 'sealedEarlier' | 'proofs' | 'acknowledge' | 'fence' | 'attach' | 'saveIdentity' | 'savePolicy'
>

export interface Randomness {
  /** Uniform in [0, 1). */
  readonly fraction: () => number
  /** 128 random bits as text of 16 to 64 characters: nonces and salts. */
  readonly token: () => string
}

export type AgentLog = Pick<Log, 'info' | 'warn'>

export type EnrollmentToken =
  | { readonly token: string; /** Path of its file, or name of its environment variable. */ readonly source: string }
  | { readonly token: null; /** Why the device has no token, as a sentence. */ readonly reason: string }
