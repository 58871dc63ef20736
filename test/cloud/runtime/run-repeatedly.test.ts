import { expect, it } from 'vitest'
import { runRepeatedly } from '../../../src/cloud/runtime/run-repeatedly.ts'
import { CodedError } from '../../../src/protocol/errors.ts'

it('logs a problem that lasts once a minute, and another one at once', async () => {
  let call: () => void | Promise<void> = () => undefined
  let problem = new CodedError('DATABASE_UNREACHABLE', 'there is no primary')
  const lines: unknown[] = []
  const stop = runRepeatedly(
    {
      timers: {
        every: (_ms, given) => {
          call = given
          return () => undefined
        },
      },
      log: { error: (fields, message) => void lines.push([message, fields]) },
    },
    1_000,
    async () => {
      throw problem
    },
    'a session was not moved on',
  )
  const first = problem
  for (let round = 0; round < 61; round += 1) await call()
  problem = new CodedError('DATABASE_WITHOUT_STANDBY', 'PostgreSQL does not wait')
  await call()
  await stop()
  expect(lines).toEqual([
    ['a session was not moved on', { err: first, rounds: 1 }],
    ['a session was not moved on', { err: first, rounds: 60 }],
    ['a session was not moved on', { err: problem, rounds: 1 }],
  ])
})
