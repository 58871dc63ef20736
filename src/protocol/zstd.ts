/** Zstandard with its fastest level and a checksum, for texts in which much is alike. */
import { constants, zstdCompressSync, zstdDecompressSync } from 'node:zlib'

const PARAMS = { [constants.ZSTD_c_compressionLevel]: 1, [constants.ZSTD_c_checksumFlag]: 1 }

const COMPRESSED_TO = 1 / 4

const OUTPUT_BYTES_MIN = 512

/** A text of many entries is one piece of memory, which needs no copy. */
const EXPANDED_FROM = 64
const PIECE_BYTES_MAX = 1024 * 1024

export function compress(text: Uint8Array | string): Buffer {
  const bytes = typeof text === 'string' ? Buffer.from(text) : text
  // The default takes 16 kB for each output: memory that only a collection of the whole heap frees.
  const chunkSize = Math.max(OUTPUT_BYTES_MIN, Math.ceil(bytes.length * COMPRESSED_TO))
  return zstdCompressSync(bytes, { params: PARAMS, chunkSize, pledgedSrcSize: bytes.length })
}

/** @throws Error if the data is damaged, or too long */
export function decompress(data: Uint8Array, bytesMax?: number): Buffer {
  const chunkSize = Math.min(Math.max(OUTPUT_BYTES_MIN, data.length * EXPANDED_FROM), PIECE_BYTES_MAX)
  return zstdDecompressSync(data, { chunkSize, ...(bytesMax === undefined ? {} : { maxOutputLength: bytesMax }) })
}
