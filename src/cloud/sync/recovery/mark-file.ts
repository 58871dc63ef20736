/** Where a sales mark is kept: a small file that a backup of the database does not hold and a restore does not touch. */
export interface MarkFile {
  /** The text of each slot, in their order. */
  read(): readonly string[] | 'MISSING' | 'DAMAGED'
  /** Puts an empty file in the place of whatever is there. */
  begin(): void
  /**
   * Writes one slot as a whole. It survives the end of the process at once, and a power cut after a flush.
   * @throws CodedError NOT_RECORDED when the file is as it was before
   */
  write(slot: number, text: string): void
  /** @throws CodedError NOT_RECORDED */
  flush(): void
  /** As `flush`; nothing waits for it. */
  flushLater(): Promise<void>
  /** Another one when the file was copied or moved. */
  place(): string
  /** Of this start of the machine; null where that cannot be known. */
  readonly bootId: string | null
}

/** Longest text of a slot, characters of ASCII. */
export const SLOT_TEXT_MAX = 500
