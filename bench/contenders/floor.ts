/** The floor as a contender: see `floor/process.ts`. */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { FLOOR_MARK, type FloorOrder, type FloorStack } from '../floor/order.ts'
import type { Contender } from './contender.ts'

/** @param sizes of one request, one row and one answer, the same as the agent's */
export function floor(
  stack: FloorStack,
  sizes: { readonly bodies: readonly string[]; readonly rowBytes: number; readonly answerBytes: number },
): Contender {
  return {
    name: `floor (${stack})`,
    async start({ directory, socketPath }) {
      const order: FloorOrder = {
        stack,
        socketPath,
        databasePath: join(directory, 'floor.db'),
        rowBytes: sizes.rowBytes,
        answerBytes: sizes.answerBytes,
      }
      const child = fork(new URL('../floor/process.ts', import.meta.url), [JSON.stringify(order)])
      const exit = once(child, 'exit')
      const started = await Promise.race([once(child, 'message'), exit.then(() => undefined)])
      if (started === undefined) throw new Error('the floor does not start')
      return {
        target: {
          protocol: 'http',
          socketPath: order.socketPath,
          path: '/floor',
          bodies: sizes.bodies,
          grantMark: FLOOR_MARK,
        },
        pid: child.pid ?? 0,
        async killAndCount() {
          child.kill('SIGKILL')
          await exit
          return countEntries(order.databasePath)
        },
      }
    },
  }
}

/** Ledger entries in a database that nobody has open. */
export function countEntries(databasePath: string): number {
  const database = new Database(databasePath)
  try {
    return database.prepare('SELECT count(*) FROM entry').pluck().get() as number
  } finally {
    database.close()
  }
}
