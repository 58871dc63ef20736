/** Invariants of the product. */
export type Invariant =
  /** Outstanding tokens are at most the cap in force. */
  | 'I1'
  /** Devices do not spend above their grants. */
  | 'I2'
  /** Billed equals consumed, and is never below acknowledged. */
  | 'I3'
  /** Nothing is billed twice. */
  | 'I4'
  /** On a device: used - refunded + returned <= granted. */
  | 'I5'
  /** No fork alarm or lock-out without a copy, restore or tampered database. */
  | 'I6'
  /** The device's time interval contains the true time, and grants expire in time. */
  | 'TIME'
  /** Everything comes to rest after the faults. */
  | 'LIVENESS'
  /** With contact, no request is refused that the pool can pay, and no call with an unexpected error. */
  | 'REFUSAL'
  /** A plain evaluator decides the same by the same rules, and charges the same accounts. */
  | 'DECISION'
  /** Each entry names the engine version that decided. */
  | 'ENGINE'
  /** No assertion of the product fails. */
  | 'ASSERTION'

export class Violation extends Error {
  readonly invariant: Invariant

  constructor(invariant: Invariant, message: string) {
    super(message)
    this.name = 'Violation'
    this.invariant = invariant
  }
}

export function wordsOf(error: unknown): string {
  const words: string[] = []
  for (let at = error; at instanceof Error; at = at.cause) words.push(at.message)
  return words.length === 0 ? String(error) : words.join(' < ')
}
