/** Where archives are: a directory or an S3-compatible store. Files are never changed. Methods throw ARCHIVE_UNAVAILABLE. */
export interface ArchivePlace {
  readonly name: string
  list(): Promise<readonly string[]>
  /** Null: there is no such file. */
  get(name: string): Promise<Buffer | null>
  /** Writes a whole file, durable when it resolves. False: there is a file with this name, and it is unchanged. */
  create(name: string, body: Buffer): Promise<boolean>
}

export interface Compression {
  compress(text: string): Promise<Buffer>
  /** Rejects for other bytes. */
  decompress(body: Buffer): Promise<string>
}
