/** Whether the process lives, and whether it can serve. Both without a token, and without a word about what is inside. */
import type { FastifyInstance } from 'fastify'
import { z } from 'zod'
import { answerError, sendJson } from './answer-error.ts'
import { declaredAnswers } from './operation.ts'

/**
 * @param check rejects when the service cannot do its work
 * @param conditions codes of what an administrator should look at, while the service does its work
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
