/** Whether the process lives, and whether it can serve. Both without a token, and without a word about what is inside. */
import type { FastifyInstance } from 'fastify'
import { z } from 'zod'
import { answerError, sendJson } from './answer-error.ts'
import { declaredAnswers } from './operation.ts'

/** @param check rejects when the service cannot do its work */
export function registerHealth(http: FastifyInstance, check: () => Promise<unknown>): void {
  http.get('/healthz', promise('ok'), (_request, reply) => sendJson(reply, 200, { status: 'ok' }))
  http.get('/readyz', promise('ready'), async (request, reply) => {
    try {
      await check()
      sendJson(reply, 200, { status: 'ready' })
    } catch (error) {
      answerError(error, request, reply)
    }
    return reply
  })
}

function promise(status: string) {
  const form = { description: 'It is.', body: z.strictObject({ status: z.literal(status) }) }
  return { exposeHeadRoute: true, config: { answers: declaredAnswers('GET', { 200: form }, []) } }
}
