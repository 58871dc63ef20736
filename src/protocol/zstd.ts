/**
 * Zstandard with its fastest level and a checksum, for texts in which much is alike. Calls the library inside Node where it can,
 * with one context for all calls: Node's own functions make a stream for each, which takes longer than to compress a short text.
 */
import { createRequire } from 'node:module'
import { constants, zstdCompressSync, zstdDecompressSync } from 'node:zlib'

const LEVEL = 1

/** Output bytes to reserve for each byte of a text; unused ones are released. */
const COMPRESSED_TO = 1 / 4

const OUTPUT_BYTES_MIN = 512

/** A text of many entries is one piece of memory, which needs no copy. */
const EXPANDED_FROM = 64
const PIECE_BYTES_MAX = 1024 * 1024

/** Longer texts use a stream. */
const IN_PLACE_BYTES_MAX = 1024 * 1024

type Call = (...args: readonly unknown[]) => unknown

const NO_PREFIX = Buffer.alloc(0)

/** Of the longest one. */
export const FRAME_HEADER_BYTES = 18

interface Library {
  readonly compress: (bytes: Uint8Array, prefix: Uint8Array) => Buffer | undefined
  readonly decompress: (data: Uint8Array, bytesMax: number, prefix: Uint8Array) => Buffer | undefined
}

/** Undefined is returned for all that the library refuses; Node's own functions then say why. Null: this Node has none. */
function openLibrary(): Library | null {
  try {
    const { default: koffi } = createRequire(import.meta.url)('koffi') as {
      default: { load(path: null): { func(declaration: string): Call } }
    }
    const node = koffi.load(null)
    const compressor = node.func('void *ZSTD_createCCtx()')()
    const decompressor = node.func('void *ZSTD_createDCtx()')()
    const setParameter = node.func('size_t ZSTD_CCtx_setParameter(void *, int, int)')
    setParameter(compressor, constants.ZSTD_c_compressionLevel, LEVEL)
    setParameter(compressor, constants.ZSTD_c_checksumFlag, 1)
    const boundOf = node.func('size_t ZSTD_compressBound(size_t)')
    // The library keeps a pointer to the prefix, which must not change until the next call has returned.
    const setCompressionPrefix = node.func('size_t ZSTD_CCtx_refPrefix(void *, const void *, size_t)')
    const compress2 = node.func('size_t ZSTD_compress2(void *, void *, size_t, const void *, size_t)')
    const sizeOf = node.func('unsigned long long ZSTD_getFrameContentSize(const void *, size_t)')
    const setDecompressionPrefix = node.func('size_t ZSTD_DCtx_refPrefix(void *, const void *, size_t)')
    const decompressDCtx = node.func('size_t ZSTD_decompressDCtx(void *, void *, size_t, const void *, size_t)')
    const output = Buffer.alloc(Number(boundOf(IN_PLACE_BYTES_MAX)))
    return {
      compress: (bytes, prefix) => {
        if (bytes.length > IN_PLACE_BYTES_MAX) return undefined
        if (prefix.length > 0) setCompressionPrefix(compressor, prefix, prefix.length)
        const length = compress2(compressor, output, output.length, bytes, bytes.length)
        return isLength(length, output.length) ? Buffer.from(output.subarray(0, length)) : undefined
      },
      decompress: (data, bytesMax, prefix) => {
        const length = sizeOf(data, data.length)
        if (!isLength(length, Math.min(bytesMax, IN_PLACE_BYTES_MAX))) return undefined
        const bytes = Buffer.allocUnsafe(length)
        if (prefix.length > 0) setDecompressionPrefix(decompressor, prefix, prefix.length)
        return decompressDCtx(decompressor, bytes, length, data, data.length) === length ? bytes : undefined
      },
    }
  } catch {
    return null
  }
}

let opened: Library | null | undefined

function library(): Library | null {
  if (opened === undefined) opened = openLibrary()
  return opened
}

/** Errors of the library are very large numbers. */
function isLength(result: unknown, max: number): result is number {
  return typeof result === 'number' && result <= max
}

const MAGIC = 0xfd2fb528
const DICTIONARY_ID_BYTES = [0, 1, 2, 4] as const

/**
 * Bytes of the text as its first frame declares them; undefined if it does not, or is no frame.
 * Source: RFC 8878, section 3.1.1.1.
 */
export function declaredLength(data: Buffer): number | undefined {
  const head = Buffer.alloc(FRAME_HEADER_BYTES)
  data.copy(head)
  if (head.readUInt32LE(0) !== MAGIC) return undefined
  const descriptor = head.readUInt8(4)
  const isOneSegment = (descriptor & 0b10_0000) !== 0
  const at = 5 + (isOneSegment ? 0 : 1) + (DICTIONARY_ID_BYTES[descriptor & 0b11] ?? 0)
  switch (descriptor >> 6) {
    case 0:
      return isOneSegment ? head.readUInt8(at) : undefined
    case 1:
      return head.readUInt16LE(at) + 256
    case 2:
      return head.readUInt32LE(at)
    default:
      return Number(head.readBigUInt64LE(at))
  }
}

/** @param prefix bytes that the reader has too: what the text repeats of them takes no space */
export function compress(text: Uint8Array | string, prefix: Uint8Array = NO_PREFIX): Buffer {
  const bytes = typeof text === 'string' ? Buffer.from(text) : text
  return library()?.compress(bytes, prefix) ?? compressInStream(bytes, prefix)
}

function compressInStream(bytes: Uint8Array, prefix: Uint8Array): Buffer {
  const params = { [constants.ZSTD_c_compressionLevel]: LEVEL, [constants.ZSTD_c_checksumFlag]: 1 }
  // The default takes 16 kB for each output: memory that only a collection of the whole heap frees.
  const chunkSize = Math.max(OUTPUT_BYTES_MIN, Math.ceil(bytes.length * COMPRESSED_TO))
  return zstdCompressSync(bytes, { params, chunkSize, pledgedSrcSize: bytes.length, ...dictionaryOf(prefix) })
}

/**
 * @param prefix that the data was compressed with
 * @throws Error if the data is damaged, or too long
 */
export function decompress(data: Uint8Array, bytesMax = Infinity, prefix: Uint8Array = NO_PREFIX): Buffer {
  return library()?.decompress(data, bytesMax, prefix) ?? decompressInStream(data, bytesMax, prefix)
}

function decompressInStream(data: Uint8Array, bytesMax: number, prefix: Uint8Array): Buffer {
  const chunkSize = Math.min(Math.max(OUTPUT_BYTES_MIN, data.length * EXPANDED_FROM), PIECE_BYTES_MAX)
  const limit = bytesMax === Infinity ? {} : { maxOutputLength: bytesMax }
  return zstdDecompressSync(data, { chunkSize, ...limit, ...dictionaryOf(prefix) })
}

function dictionaryOf(prefix: Uint8Array): { readonly dictionary?: Uint8Array } {
  return prefix.length === 0 ? {} : { dictionary: prefix }
}
