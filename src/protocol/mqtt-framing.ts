/**
 * Where MQTT packets begin and how long they say that they are. Whoever reads them with a library would hold all of a packet
 * before it could refuse it; this tells from its first bytes.
 */

/** Follows the fixed headers of MQTT: one byte of type, one to four bytes of remaining length, then the rest. */
export class PacketMeter {
  readonly #bytesMax: number
  /** Bytes of the current packet that are still to come; null while its length is being read. */
  #rest: number | null = null
  /** Bytes of the fixed header that were read. */
  #read = 0
  #length = 0

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax
  }

  /** The next bytes of one side; false for a packet that is too large, or a length that MQTT cannot express. */
  take(chunk: Uint8Array): boolean {
    let at = 0
    while (at < chunk.length) {
      if (this.#rest !== null) {
        const skipped = Math.min(this.#rest, chunk.length - at)
        at += skipped
        this.#skip(skipped)
      } else if (!this.#readHeader(chunk[at++] ?? 0)) return false
    }
    return true
  }

  #skip(bytes: number): void {
    this.#rest = (this.#rest ?? 0) - bytes
    if (this.#rest > 0) return
    this.#rest = null
    this.#read = 0
    this.#length = 0
  }

  #readHeader(byte: number): boolean {
    this.#read += 1
    if (this.#read === 1) return true
    this.#length += (byte & 0x7f) * 128 ** (this.#read - 2)
    if (this.#length > this.#bytesMax) return false
    if ((byte & 0x80) !== 0) return this.#read < 5
    this.#rest = this.#length
    this.#skip(0)
    return true
  }
}
