/** Digest of the rows of a table, which is the same for equal rows in both databases. */
import { type Hash, createHash } from 'node:crypto'

/** A value as both drivers return it. */
export type Value = null | bigint | string | Uint8Array

export interface TableDigest {
  readonly rows: number
  /** SHA-256 of all rows in the order of the primary key, in hexadecimal. */
  readonly sha256: string
}

export class RowDigest {
  readonly #hash: Hash = createHash('sha256')
  #rows = 0

  get rows(): number {
    return this.#rows
  }

  add(row: readonly Value[]): void {
    this.#rows += 1
    for (const value of row) {
      if (value === null) this.#hash.update('n')
      else if (typeof value === 'bigint') this.#hash.update(`i${value};`)
      else {
        const bytes = typeof value === 'string' ? Buffer.from(value, 'utf8') : value
        this.#hash.update(`${typeof value === 'string' ? 't' : 'b'}${bytes.length}:`).update(bytes)
      }
    }
  }

  end(): TableDigest {
    return { rows: this.#rows, sha256: this.#hash.digest('hex') }
  }
}
