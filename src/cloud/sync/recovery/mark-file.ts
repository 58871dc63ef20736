/** File of a sales mark. A backup of the database must not contain it, and a restore must not touch it. */
export interface MarkFile {
  read(): readonly string[] | 'MISSING' | 'DAMAGED'
  begin(): void
  /** Writes one slot atomically; flushed later. @throws CodedError NOT_RECORDED: the file is unchanged */
  write(slot: number, text: string): void
  /** @throws CodedError NOT_RECORDED */
  flush(): void
  flushLater(): Promise<void>
  place(): string
  readonly bootId: string | null
}

/** Characters, in ASCII. */
export const SLOT_TEXT_MAX = 500
