/** File of a sales mark. A backup of the database must not contain it, and a restore must not touch it. */
export interface MarkFile {
  read(): readonly string[] | 'MISSING' | 'DAMAGED'
  begin(): void
  /**
   * Writes one slot atomically. Survives the process at once, and a power cut after a flush.
   * @throws CodedError NOT_RECORDED: the file is unchanged
   */
  write(slot: number, text: string): void
  /** @throws CodedError NOT_RECORDED */
  flush(): void
  flushLater(): Promise<void>
  /** Changes when the file is copied or moved. */
  place(): string
  /** Changes with each boot; null: unknown. */
  readonly bootId: string | null
}

/** Longest slot text, ASCII characters. */
export const SLOT_TEXT_MAX = 500
