/** Decompresses bodies. The limit applies to the output; nothing beyond it is unpacked. */
import { promisify } from 'node:util'
import { gunzip, gunzipSync } from 'node:zlib'
import { CodedError } from '../../protocol/errors.ts'
import { REFUSALS } from '../../protocol/service/refusals.ts'

const decompressAside = promisify<Buffer, object, Buffer>(gunzip)

/** Up to so many bytes, decompressing takes less time than handing the work to another thread. */
const QUICK_INPUT_MAX = 8_192
const QUICK_OUTPUT_MAX = 65_536

/**
 * @param bytesMax of the body after decompression
 * @throws CodedError BAD_REQUEST, BODY_TOO_LARGE
 */
export async function decompress(body: Buffer, bytesMax: number): Promise<Buffer> {
  try {
    if (body.length <= QUICK_INPUT_MAX) {
      const quick = decompressQuickly(body, Math.min(bytesMax, QUICK_OUTPUT_MAX))
      if (quick !== undefined) return quick
    }
    return await decompressAside(body, { maxOutputLength: bytesMax })
  } catch (cause) {
    throw isTooLarge(cause)
      ? new CodedError('BODY_TOO_LARGE', REFUSALS.bodyTooLarge, { cause })
      : new CodedError('BAD_REQUEST', 'The body is not valid gzip data.', { cause })
  }
}

/** Undefined: it is longer. */
function decompressQuickly(body: Buffer, bytesMax: number): Buffer | undefined {
  try {
    return gunzipSync(body, { maxOutputLength: bytesMax })
  } catch (error) {
    if (isTooLarge(error)) return undefined
    throw error
  }
}

function isTooLarge(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ERR_BUFFER_TOO_LARGE'
}
