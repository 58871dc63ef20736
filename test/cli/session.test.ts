// `tallygate session` at a real agent, and as an administrator at a real twin.
import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { Application, Site } from '../agent/site.ts'
import { openTwin, pick } from '../cloud/harness.ts'
import { tallygate } from './outside.ts'

test('keeps a session at the agent from its beginning to its end', async () => {
  const site = await Site.make(10n ** 9n)
  const agent = await site.start()
  await new Application(agent).until(({ accounts }) => accounts.some(({ granted }) => granted > 0n))
  const session = (...args: string[]) => tallygate(['session', ...args, '--socket', site.socketPath])
  const id = (await session('open')).out.trim()
  expect((await session('show', id)).out).toBe('IDLE\n')
  const ask = (...args: string[]) => session('request', id, '--requester', 'user:ada', ...args)
  expect(await ask('--item', 'print', '--count', '2.5')).toEqual({ code: 0, out: 'allowed: 2.5 tokens\n', err: '' })
  expect((await session('show', id)).out).toBe('ACTIVE: 2.5 print\n')
  expect((await session('list')).out).toMatch(new RegExp(`^session .*\n${id}  ACTIVE +20`))
  const refused = await ask('--item', 'print', '--count', '100000', '--attribute', 'role=guest')
  expect([refused.code, refused.out]).toEqual([1, 'refused (2002): Insufficient tokens\n'])
  expect((await ask()).out).toBe('at rest\n')
  expect(await session('heartbeat', id)).toEqual({ code: 0, out: '', err: '' })
  expect(await session('close', id)).toEqual({ code: 0, out: '', err: '' })
  expect((await session('list')).out).toBe('')
  for (const again of [await session('heartbeat', id), await session('close', id), await ask('--item', 'print')]) {
    expect(again.code).toBe(1)
    expect(again.err).toContain('SESSION_NOT_OPERABLE: Session is TERMINATED.')
  }
})

test('lets an administrator lock, unlock and end a session of the twin', async () => {
  await using twin = await openTwin()
  const instanceId = await twin.instance()
  const opened = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId } })
  const id = String(pick(opened.body, 'sessionId'))
  const order = (what: string) =>
    tallygate(['session', what, id, '--url', twin.cloud.address, '--admin-key', twin.cloud.administrationKeyFile], {
      now: () => twin.now,
      readText: (path) => readFileSync(path, 'utf8'),
    })
  expect((await order('lock')).out).toBe('LOCKED\n')
  expect((await order('unlock')).out).toBe('IDLE\n')
  expect((await order('terminate')).out).toBe('TERMINATED\n')
  expect((await order('lock')).err).toContain('CONFLICT')
})
