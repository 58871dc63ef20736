/** Liveness and readiness, without a token and without internal details. */
import type { FastifyInstance } from 'fastify'
import { z } from 'zod'
import { answerError, sendJson } from './answer-error.ts'
import { declaredAnswers } from './declared-answers.ts'

/**
 * @param check rejects if the service cannot work
 * @param conditions codes of problems that need an administrator while the service works
 */
export function registerHealth(
  http: FastifyInstance,
  check: () => Promise<unknown>,
  conditions: () => readonly string[],
): void {
  http.get('/healthz', promise('ok'), (_request, reply) => sendJson(reply, 200, { status: 'ok' }))
  http.get('/readyz', promise('ready'), async (request, reply) => {
    try {
      await check()
      const codes = conditions()
      sendJson(reply, 200, { status: 'ready', ...(codes.length === 0 ? {} : { conditions: codes }) })
    } catch (error) {
      answerError(error, request, reply)
    }
    return reply
  })
}

function promise(status: string) {
  const form = {
    description: 'It is.',
    body: z.strictObject({ status: z.literal(status), conditions: z.array(z.string()).optional() }),
  }
  return { exposeHeadRoute: true, config: { answers: declaredAnswers('GET', { 200: form }, []) } }
}
