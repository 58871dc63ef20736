/** Reads MQTT packet lengths from the first bytes, so that oversized packets are refused before they are buffered. */

/** MQTT fixed header: one type byte, one to four length bytes, then the rest. */
export class PacketMeter {
  readonly #bytesMax: number
  /** Remaining bytes of the current packet; null while its length is read. */
  #rest: number | null = null
  #read = 0
  #length = 0
  #packets = 0

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax
  }

  /** Begun so far. */
  get packets(): number {
    return this.#packets
  }

  /** Takes the next bytes; false if a packet is too large or its length invalid. */
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
    if (this.#read === 1) {
      this.#packets += 1
      return true
    }
    this.#length += (byte & 0x7f) * 128 ** (this.#read - 2)
    if (this.#length > this.#bytesMax) return false
    if ((byte & 0x80) !== 0) return this.#read < 5
    this.#rest = this.#length
    this.#skip(0)
    return true
  }
}
