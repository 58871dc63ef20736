/** A promise of the product that did not hold. */
export type Invariant =
  /** What is out of a pool is at most the cap in force. */
  | 'I1'
  /** Nobody spends more than was granted to him. */
  | 'I2'
  /** What is billed is what was consumed, and never less than was acknowledged. */
  | 'I3'
  /** Nothing is billed twice. */
  | 'I4'
  /** On a device: used - refunded + returned <= granted. */
  | 'I5'
  /** No fork alarm and no lock-out without a copy, a restore or a tampered database. */
  | 'I6'
  /** The device's interval of time holds the true time, and grants end in time. */
  | 'TIME'
  /** When the faults stop, everything comes to rest. */
  | 'LIVENESS'
  /** While the cloud can be reached, nobody is refused what the pool can pay. */
  | 'REFUSAL'
  /** No assertion of the product itself fails. */
  | 'ASSERTION'

export class Violation extends Error {
  readonly invariant: Invariant

  constructor(invariant: Invariant, message: string) {
    super(message)
    this.name = 'Violation'
    this.invariant = invariant
  }
}

/** An error with what caused it. */
export function wordsOf(error: unknown): string {
  const words: string[] = []
  for (let at = error; at instanceof Error; at = at.cause) words.push(at.message)
  return words.length === 0 ? String(error) : words.join(' < ')
}
