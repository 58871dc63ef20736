import { pino } from 'pino'
import { createServer } from '../../../src/cloud/http/server.ts'

/** A server of the cloud without operations. @param onWrongAnswer null: responses are not checked */
export function bareServer(onWrongAnswer: ((error: Error) => void) | null = null) {
  return createServer({
    prefix: '',
    bodyMax: 1024,
    requestTimeoutMs: 60_000,
    logger: pino({ level: 'silent' }),
    newId: () => 'id',
    tls: null,
    onWrongAnswer,
    onBrokenBody: () => undefined,
    onAnswered: () => undefined,
  })
}
