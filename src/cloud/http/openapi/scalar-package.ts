/**
 * The script of the reference from its package, which only a clone and the build have. Scalar's main package has 400
 * dependencies; its Fastify plugin contains the same script, and has ten.
 */
import { gzipSync } from 'node:zlib'
import scalar from '@scalar/fastify-api-reference'
import { fastify } from 'fastify'

export const SCALAR = '@scalar/fastify-api-reference'

/** Compressed by gzip. */
export async function scriptOfPackage(): Promise<Buffer> {
  const http = fastify()
  await http.register(scalar, { routePrefix: '/', configuration: { url: '/' } })
  const { rawPayload } = await http.inject('/js/scalar.js')
  await http.close()
  return gzipSync(rawPayload, { level: 9 })
}
