import { constants, zstdCompress, zstdDecompress } from 'node:zlib'
import { promisify } from 'node:util'
import type { Compression } from '../../usage/archive/place.ts'

const OPTIONS = { params: { [constants.ZSTD_c_compressionLevel]: 9, [constants.ZSTD_c_checksumFlag]: 1 } }

const compress = promisify(zstdCompress)
const decompress = promisify(zstdDecompress)

export const zstd: Compression = {
  compress: (text) => compress(Buffer.from(text), OPTIONS),
  decompress: async (body) => (await decompress(body)).toString('utf8'),
}
