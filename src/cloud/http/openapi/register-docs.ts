/**
 * API reference below `<prefix>/docs`, without a token: it contains nothing installation-specific. A content security
 * policy forbids scripts and requests.
 */
import { hash } from 'node:crypto'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { z } from 'zod'
import { type Operation, declaredAnswers } from '../operation.ts'
import { DOCUMENT_NAMES, type DocumentName, apiDocuments } from './documents.ts'
import type { Html } from './html.ts'
import type { JsonSchema } from './render-schema.ts'
import { type Link, STYLE, errorsPage, indexPage, referencePage } from './reference-page.ts'

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
  const links: readonly Link[] = [
    ...DOCUMENT_NAMES.map((name) => ({
      text: name === 'edge' ? 'Edge API' : name === 'data' ? 'Usage reports' : `Service API ${name}`,
      href: `${root}/${name}`,
    })),
    { text: 'Error codes', href: errorsUrl },
    ...DOCUMENT_NAMES.map((name) => ({ text: `${name}.json`, href: `${root}/${name}.json` })),
  ]
  const serve = (url: string, mediaType: string, make: () => string): void => {
    let text: string | undefined
    const form = { description: 'The page.', body: z.unknown(), mediaType }
    const options = { exposeHeadRoute: true, config: { answers: declaredAnswers('GET', { 200: form }, []) } }
    http.get(url, options, (_request, reply) => {
      text ??= make()
      guard(reply).type(`${mediaType}; charset=utf-8`).send(text)
    })
  }
  const servePage = (url: string, make: () => Html): void => serve(url, 'text/html', () => make().text)

  servePage(root, () => indexPage(links))
  servePage(errorsUrl, () => errorsPage(links))
  for (const name of DOCUMENT_NAMES) {
    servePage(`${root}/${name}`, () => referencePage(documentOf(name), links, errorsUrl))
    serve(`${root}/${name}.json`, 'application/json', () => JSON.stringify(documentOf(name)))
  }
}

const POLICY = [
  "default-src 'none'",
  `style-src 'sha256-${hash('sha256', STYLE, 'base64')}'`,
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
