/** The baseline as a contender: see `floor/process.ts`. */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { FLOOR_MARK, type FloorOptions, type FloorStack } from '../floor/options.ts'
import { REQUEST_BODIES, REQUEST_PATH, SERIAL } from '../workload.ts'
import type { Sizes } from './agent.ts'
import type { Contender } from './contender.ts'
import { countRows } from './ledger-file.ts'

/** @param sizes of one row and one response, equal to the agent's */
export function floor(stack: FloorStack, sizes: Sizes): Contender {
  return {
    name: `floor (${stack})`,
    async start({ directory, socketPath }) {
      const options: FloorOptions = {
        stack,
        socketPath,
        databasePath: join(directory, 'floor.db'),
        rowBytes: sizes.entryBytes,
        answerBytes: sizes.answerBytes,
      }
      const child = fork(new URL('../floor/process.ts', import.meta.url), [JSON.stringify(options)])
      const exit = once(child, 'exit')
      const started = await Promise.race([once(child, 'message'), exit.then(() => undefined)])
      if (started === undefined) throw new Error('the floor does not start')
      return {
        target: {
          protocol: 'http',
          socketPath: options.socketPath,
          paths: [REQUEST_PATH],
          bodies: REQUEST_BODIES,
          serial: SERIAL,
          grantMark: FLOOR_MARK,
        },
        pid: child.pid ?? 0,
        async killAndCount() {
          child.kill('SIGKILL')
          await exit
          return countRows(options.databasePath)
        },
      }
    },
  }
}
