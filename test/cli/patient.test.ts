// Commands that wait for an agent that works, longer than for one that does not respond.
import { setTimeout as pause } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { AGENT_TIMEOUT_MS } from '../../src/cli/local-agent.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import { Application, Site } from '../scenarios/agent/site.ts'
import { tallygate } from './outside.ts'

const SLOW_MS = AGENT_TIMEOUT_MS + 1_000

/** An agent with a few tokens, whose next round waits for a cloud that does not respond in time. */
async function agentWithSlowCloud() {
  const site = await Site.make()
  const waiting = Promise.withResolvers<undefined>()
  let hasTokens = false
  const agent = await site.start(
    { 'grants-top-up-deadline': '60s' },
    {
      exchange: async (request) => {
        if (!hasTokens) return site.cloud.exchange(request)
        waiting.resolve(undefined)
        await pause(SLOW_MS, undefined, { signal: request.signal }).catch(() => undefined)
        throw new CodedError('CLOUD_UNREACHABLE', 'no response in time')
      },
    },
  )
  await new Application(agent).until(({ accounts }) => accounts.length > 0)
  hasTokens = true
  return { run: (...args: string[]) => tallygate([...args, '--socket', site.socketPath]), waiting: waiting.promise }
}

test.each(['heartbeat', 'close'])(
  'session %s waits behind a request of the session that waits for tokens',
  { timeout: 30_000 },
  async (command) => {
    const { run, waiting } = await agentWithSlowCloud()
    const id = (await run('session', 'open')).out.trim()
    const asked = run('session', 'request', id, '--requester', 'user:ada', '--item', 'print', '--count', '900')
    await waiting
    expect(await run('session', command, id)).toEqual({ code: 0, out: '', err: '' })
    expect((await asked).code).toBe(1)
  },
)

test('rotate-key waits for a sync round to which the cloud does not respond', { timeout: 30_000 }, async () => {
  const { run, waiting } = await agentWithSlowCloud()
  await waiting
  expect(await run('rotate-key', '--no-wait')).toMatchObject({ code: 0, err: '' })
})
