/** Serves operations, with Fastify and for plain requests on the fast path. Both have the checks of `route.ts`. */
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest, RouteOptions } from 'fastify'
import { CodedError } from '../../protocol/errors.ts'
import { REFUSALS, readJsonBody } from '../../protocol/service/refusals.ts'
import { VERSION_HEADER } from '../../protocol/wire.ts'
import { sendJson } from './answer-error.ts'
import { watchArrival } from './arrival.ts'
import type { Entrance } from './entrance.ts'
import { type DeclaredAnswers, declaredAnswers } from './declared-answers.ts'
import { decompress } from './gzip.ts'
import { type Answer, CLIENTS, type Operation, addressesOf, at } from './operation.ts'
import type { PlainRequest } from './plain-requests.ts'
import { type CheckDeps, type Head, type Route, routeTo, withoutCells } from './route.ts'
import type { Server } from './server.ts'
import type { Slots } from './slots.ts'

export interface ServeDeps extends CheckDeps {
  /** Of the operation at the index, if it is served over cells. Null: there are none. */
  readonly routeOver: ((index: number, version: string) => Route) | null
  readonly slots: Slots
  readonly entrance: Entrance
  /** Maximum time for a complete request to arrive, ms. */
  readonly requestTimeoutMs: number
  /** Software version. */
  readonly version: string
}

export function serveOperations(
  { http, plain }: Pick<Server, 'http' | 'plain'>,
  prefix: string,
  deps: ServeDeps,
  operations: readonly Operation[],
): void {
  for (const [index, operation] of operations.entries()) {
    const bases = operation.atRoot && prefix !== '' ? [prefix, ''] : [prefix]
    for (const version of operation.versions) {
      const route = deps.routeOver?.(index, version) ?? withoutCells(routeTo(operation, version, deps))
      const options = optionsOf(operation, version, route, deps)
      const addresses = addressesOf(operation, version)
      for (const url of bases.flatMap((base) => addresses.map((address) => `${base}${address}`))) {
        http.route({ url, ...options })
        if (operation.decides !== true) continue
        const answer = (request: PlainRequest): Promise<Answer> => answerAtOnce(route, deps.slots, request)
        plain.add({ url, method: operation.method, answers: options.config.answers, answer })
      }
    }
  }
}

function optionsOf(
  operation: Operation,
  version: string,
  { admit, enter, answer }: Route,
  deps: ServeDeps,
): Omit<RouteOptions, 'url'> & { readonly config: { readonly answers: DeclaredAnswers } } {
  const { method, principals, bodyMax, gzip = false, sendsTimeAndVersion } = operation
  const answers = declaredAnswers(method, at(version, operation.answers), operation.errors)
  const heads = new WeakMap<FastifyRequest, Head>()
  const arrivals = new WeakMap<FastifyRequest, () => void>()
  const isOfDevices = !CLIENTS.some((kind) => principals.includes(kind))
  const onSend: RouteOptions['onSend'] = async (_, reply) => {
    deps.entrance.leave(reply.raw)
    if (sendsTimeAndVersion) void reply.header('date', new Date(deps.now()).toUTCString())
  }
  return {
    method,
    config: { answers },
    ...(bodyMax === undefined ? {} : { bodyLimit: bodyMax }),
    ...(isOfDevices || sendsTimeAndVersion ? { onSend } : {}),
    // Before the body is read: unauthorized callers must not cause reads.
    onRequest: async (request, reply) => {
      if (isOfDevices) await deps.entrance.enter(reply.raw, request.headers)
      const head = await deps.slots.authenticate(request.raw, () => admit(request))
      const caller = head.principal
      encodingOf(request, gzip)
      const arrives = hasBody(request)
      deps.slots.takeUntilClose(caller, reply, arrives)
      enter(head, reply.raw)
      // A short body has arrived with the head.
      if (arrives && !request.raw.complete) {
        deps.entrance.leave(reply.raw)
        const stop = watchArrival(request, caller.kind, deps.requestTimeoutMs)
        arrivals.set(request, stop)
        reply.raw.once('close', stop)
      }
      heads.set(request, head)
      if (sendsTimeAndVersion && 'keyId' in caller) void reply.header(VERSION_HEADER, deps.version)
    },
    preValidation: async (request, reply) => {
      arrivals.get(request)?.()
      deps.slots.begin(reply)
      if (request.body === undefined) return
      const body = request.body as Buffer
      const isCompressed = encodingOf(request, gzip) === 'gzip'
      request.body = readJsonBody(isCompressed ? await decompress(body, bodyMax ?? Infinity) : body).value
    },
    handler: async (request, reply) => {
      const head = heads.get(request)
      if (head === undefined) throw new Error('invariant: a request that is handled was authenticated')
      await sendAnswer(reply, await answer(head, request), answers)
      return reply
    },
  }
}

async function sendAnswer(
  reply: FastifyReply,
  { status, headers, body, text, stream }: Answer,
  answers: DeclaredAnswers,
): Promise<void> {
  if (headers !== undefined) void reply.headers(headers)
  if (stream !== undefined) {
    await reply.code(status).type(stream.type).send(Readable.from(stream.pieces))
  } else if (text !== undefined) {
    const type = answers.get(status)?.mediaType ?? 'text/plain'
    void reply.code(status).type(type).send(text)
  } else sendJson(reply, status, body)
}

async function answerAtOnce({ admit, answer }: Route, slots: Slots, request: PlainRequest): Promise<Answer> {
  const head = await slots.authenticate(request, () => admit(request))
  const slot = slots.take(head.principal, false)
  try {
    return await answer(head, { ...request, body: readJsonBody(request.body).value })
  } finally {
    slot.release()
  }
}

/** Null: not compressed. @throws CodedError MEDIA_TYPE_NOT_SUPPORTED for a compression that the operation does not take */
function encodingOf({ method, headers }: FastifyRequest, takesGzip: boolean): 'gzip' | null {
  const encoding = headers['content-encoding']?.toLowerCase()
  if (method === 'GET' || encoding === undefined || encoding === 'identity') return null
  if (!takesGzip) throw new CodedError('MEDIA_TYPE_NOT_SUPPORTED', REFUSALS.compressed)
  if (encoding === 'gzip') return encoding
  throw new CodedError('MEDIA_TYPE_NOT_SUPPORTED', 'The body uses a compression other than gzip.')
}

function hasBody({ method, headers }: FastifyRequest): boolean {
  if (method === 'GET') return false
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
}
