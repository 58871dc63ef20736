/** Length, its complement and a checksum precede each text, so that a torn write is distinguished from corruption. */
import { crc32 } from 'node:zlib'

const HEAD_BYTES = 12

/** Frames texts into one reused buffer: the result is valid until the next call. */
export class FrameWriter {
  #buffer = Buffer.allocUnsafe(64 * 1024)

  frame(texts: readonly string[]): Buffer {
    let bytes = 0
    for (const text of texts) bytes += HEAD_BYTES + 3 * text.length
    if (bytes > this.#buffer.length) this.#buffer = Buffer.allocUnsafe(2 * bytes)
    const buffer = this.#buffer
    let at = 0
    for (const text of texts) {
      const length = buffer.write(text, at + HEAD_BYTES)
      buffer.writeUInt32LE(length, at)
      buffer.writeUInt32LE(~length >>> 0, at + 4)
      buffer.writeUInt32LE(crc32(buffer.subarray(at + HEAD_BYTES, at + HEAD_BYTES + length)), at + 8)
      at += HEAD_BYTES + length
    }
    return buffer.subarray(0, at)
  }
}

export interface Frames {
  readonly texts: readonly string[]
  readonly torn: boolean
}

/** Undefined if the file is corrupt and cannot be trusted. */
export function readFrames(bytes: Buffer): Frames | undefined {
  const texts: string[] = []
  let at = 0
  while (at < bytes.length) {
    if (bytes.length - at < HEAD_BYTES) return { texts, torn: true }
    const length = bytes.readUInt32LE(at)
    if (bytes.readUInt32LE(at + 4) !== ~length >>> 0) return undefined
    const end = at + HEAD_BYTES + length
    if (end > bytes.length) return { texts, torn: true }
    const text = bytes.subarray(at + HEAD_BYTES, end)
    if (crc32(text) !== bytes.readUInt32LE(at + 8)) return undefined
    texts.push(text.toString('utf8'))
    at = end
  }
  return { texts, torn: false }
}
