/** Decompresses bodies. The limit applies to the output; nothing beyond it is unpacked. */
import { createGunzip } from 'node:zlib'
import type { FastifyRequest, RequestPayload } from 'fastify'
import { CodedError } from '../../protocol/errors.ts'

/** A hook for `preParsing`. @param bytesMax of the body after decompression */
export function decompressUpTo(bytesMax: number) {
  return async (request: FastifyRequest, _reply: unknown, payload: RequestPayload): Promise<RequestPayload> =>
    decompress(request, payload, bytesMax)
}

function decompress(request: FastifyRequest, payload: RequestPayload, bytesMax: number): RequestPayload {
  const encoding = request.headers['content-encoding']?.toLowerCase()
  if (encoding === undefined || encoding === 'identity') return payload
  if (encoding !== 'gzip') {
    throw new CodedError('MEDIA_TYPE_NOT_SUPPORTED', 'The body uses a compression other than gzip.')
  }
  const gunzip = createGunzip()
  const plain: RequestPayload = gunzip
  plain.receivedEncodedLength = 0
  let unpacked = 0
  gunzip.on('data', (chunk: Buffer) => {
    unpacked += chunk.length
    if (unpacked > bytesMax) gunzip.destroy(new CodedError('BODY_TOO_LARGE', 'The body is larger than the limit.'))
  })
  payload.on('data', (chunk: Buffer) => {
    plain.receivedEncodedLength = (plain.receivedEncodedLength ?? 0) + chunk.length
  })
  // The reader handles errors while it reads; this handles later ones.
  gunzip.on('error', () => undefined)
  payload.on('error', (error) => gunzip.destroy(error))
  payload.pipe(gunzip)
  return plain
}

/** The error for the sender, if decompression failed. */
export function notGzip(error: unknown): CodedError | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  if (typeof code !== 'string' || !/^(Z_|ERR_PADDING|ERR_TRAILING)/.test(code)) return undefined
  return new CodedError('BAD_REQUEST', 'The body is not valid gzip data.', { cause: error })
}
