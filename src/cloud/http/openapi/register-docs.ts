/**
 * API reference below `<prefix>/docs`, without a token: it contains nothing installation-specific. A content security
 * policy limits the page to this server.
 */
import { Readable } from 'node:stream'
import { promisify } from 'node:util'
import { gunzip } from 'node:zlib'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { declaredAnswers } from '../declared-answers.ts'
import type { Operation } from '../operation.ts'
import { DOCUMENT_NAMES, type DocumentName, apiDocuments } from './documents.ts'
import type { JsonSchema } from './render-schema.ts'
import { errorsPage, referencePage } from './reference-page.ts'
import { type ScalarScript, loadScalarScript } from './scalar-script.ts'

export function registerDocs(http: FastifyInstance, prefix: string, operations: readonly Operation[]): void {
  const root = `${prefix}/docs`
  const errorsUrl = `${root}/errors`
  // Generated at the first read, to keep the start fast.
  let made: ReturnType<typeof apiDocuments> | undefined
  const documentOf = (name: DocumentName): JsonSchema => {
    made ??= apiDocuments(operations, { prefix, errorsUrl })
    const document = made.get(name)
    if (document === undefined) throw new Error(`invariant: there is a document ${name}`)
    return document
  }
  let script: Promise<ScalarScript> | undefined
  const loaded = (): Promise<ScalarScript> => (script ??= loadScalarScript())
  // Once: for each request, clients that do not read would fill the memory.
  let unpacked: Promise<Buffer> | undefined
  const unpack = (bytes: Buffer): Promise<Buffer> => (unpacked ??= promisify(gunzip)(bytes))
  const serve = (url: string, mediaType: string, make: () => string | Promise<string>): void => {
    let text: string | undefined
    const form = { description: 'The page.', body: z.unknown(), mediaType }
    const options = { exposeHeadRoute: true, config: { answers: declaredAnswers('GET', { 200: form }, []) } }
    http.get(url, options, async (_request, reply) => {
      text ??= await make()
      return guard(reply).type(`${mediaType}; charset=utf-8`).send(text)
    })
  }
  const documents = DOCUMENT_NAMES.map((name) => ({
    title: TITLES[name],
    slug: name,
    url: `${root}/${name}.json`,
    default: name === 'v1.1',
  }))

  serve(root, 'text/html', async () =>
    referencePage({ documents, errorsUrl, scriptUrl: `${root}/scalar/${(await loaded()).version}.js` }),
  )
  serve(errorsUrl, 'text/html', () => errorsPage(root))
  for (const name of DOCUMENT_NAMES) {
    serve(`${root}/${name}.json`, 'application/json', () => JSON.stringify(documentOf(name)))
  }
  const answers = declaredAnswers('GET', { 200: { description: 'The script.', streams: [JAVASCRIPT] } }, [])
  http.get(`${root}/scalar/:version.js`, { config: { answers } }, async (request, reply) =>
    sendScript(request, guard(reply), { ...(await loaded()), unpack }),
  )
  // Browsers ask for the icon of a JSON document at the root.
  const noIcon = declaredAnswers('GET', { 204: { description: 'There is no icon.' } }, [])
  http.get('/favicon.ico', { config: { answers: noIcon } }, (_request, reply) =>
    reply.code(204).header('cache-control', 'public, max-age=86400').send(),
  )
}

const TITLES: Readonly<Record<DocumentName, string>> = {
  'v1.0': 'Service API v1.0',
  'v1.1': 'Service API v1.1',
  edge: 'Edge API',
  data: 'Usage reports',
}

const JAVASCRIPT = 'text/javascript'

interface UnpackableScript extends ScalarScript {
  readonly unpack: (bytes: Buffer) => Promise<Buffer>
}

async function sendScript(
  request: FastifyRequest,
  reply: FastifyReply,
  { bytes, version, unpack }: UnpackableScript,
): Promise<FastifyReply> {
  // Another node can have another version: browsers must not keep this script under the address of that one.
  const isThisVersion = (request.params as { readonly version: string }).version === version
  reply.header('vary', 'accept-encoding').type(JAVASCRIPT)
  if (isThisVersion) reply.header('cache-control', 'public, max-age=31536000, immutable')
  const isGzip = /\bgzip\b/.test(String(request.headers['accept-encoding']))
  const sent = isGzip ? bytes : await unpack(bytes)
  if (isGzip) reply.header('content-encoding', 'gzip')
  return reply.header('content-length', sent.length).send(Readable.from([sent]))
}

/** Scalar creates style elements. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'unsafe-inline'",
  "connect-src 'self'",
  "img-src 'self' data:",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ')

function guard(reply: FastifyReply): FastifyReply {
  return reply.headers({
    'content-security-policy': POLICY,
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    'cache-control': 'no-cache',
  })
}
