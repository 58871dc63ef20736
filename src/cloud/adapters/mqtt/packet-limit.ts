/** Cuts a connection that announces a packet larger than any that devices have reason to send, before it is buffered. */
import { Transform, type TransformCallback } from 'node:stream'

/** Follows the fixed headers of MQTT: one byte of type, one to four bytes of remaining length, then the rest. */
export class PacketLimit extends Transform {
  readonly #bytesMax: number
  /** Bytes of the current packet that are still to come; null while its length is being read. */
  #rest: number | null = null
  /** Bytes of the fixed header that were read. */
  #read = 0
  #length = 0

  constructor(bytesMax: number) {
    super()
    this.#bytesMax = bytesMax
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    let at = 0
    while (at < chunk.length) {
      if (this.#rest !== null) {
        const skipped = Math.min(this.#rest, chunk.length - at)
        at += skipped
        this.#take(skipped)
      } else if (!this.#readHeader(chunk[at++] ?? 0)) {
        done(new Error('an MQTT packet is larger than the limit'))
        return
      }
    }
    done(null, chunk)
  }

  #take(bytes: number): void {
    this.#rest = (this.#rest ?? 0) - bytes
    if (this.#rest > 0) return
    this.#rest = null
    this.#read = 0
    this.#length = 0
  }

  /** False for a packet that is too large, or a length that MQTT cannot express. */
  #readHeader(byte: number): boolean {
    this.#read += 1
    if (this.#read === 1) return true
    this.#length += (byte & 0x7f) * 128 ** (this.#read - 2)
    if (this.#length > this.#bytesMax) return false
    if ((byte & 0x80) !== 0) return this.#read < 5
    this.#rest = this.#length
    this.#take(0)
    return true
  }
}
