/** Bodies that devices send compressed. The limit of a route counts what comes out of here, not what went in. */
import { Readable } from 'node:stream'
import { createGunzip } from 'node:zlib'
import type { FastifyRequest, RequestPayload } from 'fastify'
import { CodedError } from '../../../protocol/errors.ts'

/** A hook for `preParsing`. */
export async function decompress(
  request: FastifyRequest,
  _reply: unknown,
  payload: RequestPayload,
): Promise<RequestPayload> {
  const encoding = request.headers['content-encoding']?.toLowerCase()
  if (encoding === undefined || encoding === 'identity') return payload
  if (encoding !== 'gzip') {
    throw new CodedError('MEDIA_TYPE_NOT_SUPPORTED', 'The body is compressed with something else than gzip.')
  }
  const plain: RequestPayload = Readable.from(gunzipped(payload), { objectMode: false })
  plain.receivedEncodedLength = 0
  payload.on('data', (chunk: Buffer) => {
    plain.receivedEncodedLength = (plain.receivedEncodedLength ?? 0) + chunk.length
  })
  return plain
}

async function* gunzipped(payload: Readable): AsyncGenerator<Buffer> {
  const gunzip = createGunzip()
  payload.on('error', (error) => gunzip.destroy(error))
  try {
    for await (const chunk of payload.pipe(gunzip)) yield chunk as Buffer
  } catch (cause) {
    throw new CodedError('BAD_REQUEST', 'The body is not what gzip makes.', { cause })
  }
}
