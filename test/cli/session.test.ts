// `tallygate session` at a real agent, and as an administrator at a real twin.
import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { Application, Site } from '../scenarios/agent/site.ts'
import { INSTANCE } from '../agent/sync/fake-cloud.ts'
import { openTwin, pick } from '../cloud/harness.ts'
import { tallygate } from './outside.ts'

test('keeps a session at the agent from its beginning to its end', async () => {
  const site = await Site.make(10n ** 9n)
  const agent = await site.start()
  await new Application(agent).until(({ accounts }) => accounts.some(({ granted }) => granted > 0n))
  const session = (...args: string[]) => tallygate(['session', ...args, '--socket', site.socketPath])
  const id = (await session('open', '--instance', 'Workshop')).out.trim()
  expect((await session('show', id)).out).toMatch(
    new RegExp(
      `^session +${id}\ninstance +Workshop \\(${INSTANCE}\\)\nstate +IDLE\ncharged until +never\nlast heartbeat +(never|20.*Z)\nlast request +never\n$`,
    ),
  )
  const ask = (...args: string[]) => session('request', id, '--requester', 'user:ada', ...args)
  expect(await ask('--item', 'print', '--count', '2.5')).toEqual({
    code: 0,
    out: 'allowed: 2.5 tokens, 2.5 from line-1\n',
    err: '',
  })
  expect((await session('show', id)).out).toMatch(/^state +ACTIVE\npays for +2\.5 print\ncharged until +20.*Z$/m)
  expect((await session('list')).out).toMatch(
    new RegExp(`^SESSION  +STATE  +CHARGED UNTIL  +INSTANCE\n${id}  ACTIVE +20\\S+ +Workshop \\(${INSTANCE}\\)\n`),
  )
  const json = async (...args: string[]): Promise<unknown> => JSON.parse((await session(...args, '--json')).out)
  expect(await json('list')).toMatchObject({ sessionId: id, state: 'ACTIVE' })
  expect(await json('show', id)).toMatchObject({ state: 'ACTIVE', items: [{ item: 'print', count: 2.5 }] })
  const asked = await ask('--item', 'print', '--count', '99999', '--json')
  expect(asked.code).toBe(1)
  expect(JSON.parse(asked.out)).toMatchObject({ requestedItems: [{ status: { code: '2002' } }] })
  const refused = await ask('--item', 'print', '--count', '100000', '--attribute', 'role=guest')
  expect([refused.code, refused.out]).toEqual([1, 'refused (2002): Insufficient tokens\n'])
  expect(refused.err).toMatch(/^Each check: tallygate explain [0-9a-f-]{36} --socket /m)
  const misspelled = await ask('--item', 'Print')
  expect([misspelled.code, misspelled.out]).toEqual([1, expect.stringMatching(/^refused \(2001\)/)])
  expect(misspelled.err).toMatch(/^.*print.*\nEach check: tallygate explain /)
  expect((await ask()).out).toBe('no item\n')
  expect(await session('heartbeat', id)).toEqual({ code: 0, out: '', err: '' })
  expect(await session('close', id)).toEqual({ code: 0, out: '', err: '' })
  expect((await session('list')).out).toBe('No live sessions.\n')
  const nowhere = '00000000-0000-4000-8000-000000000000'
  expect((await session('show', nowhere)).err).toMatch(
    /NOT_FOUND: .*\. tallygate session list shows those that exist\.\n$/,
  )
  expect((await session('open', '--instance', nowhere)).err).toMatch(/NOT_FOUND: .*\. tallygate offers shows /)
  expect((await session('show', id)).out).toMatch(/state +TERMINATED\n$/)
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
  const command = (what: string, of = id) =>
    tallygate(['sessions', what, of, '--url', twin.cloud.address, '--admin-key', twin.cloud.administrationKeyFile], {
      now: () => twin.now,
      readText: (path) => readFileSync(path, 'utf8'),
    })
  expect((await command('lock')).out).toBe('LOCKED\n')
  expect((await command('unlock')).out).toBe('IDLE\n')
  expect((await command('terminate')).out).toBe('TERMINATED\n')
  expect((await command('lock')).err).toContain('CONFLICT')
  const unknown = await command('lock', '64d2028c-ae87-4069-a624-66089d957ef9')
  expect(unknown.err).toMatch(/NOT_FOUND: .* from the next sync of the device\. To send a command/)
})

test.each(['devices', 'session', 'access'])('the help of %s ends with examples that can be copied', async (command) => {
  const { code, out } = await tallygate([command, '--help'])
  expect(code).toBe(0)
  const examples = out.split('Examples:\n')[1]?.split('\n') ?? []
  expect(examples.filter((line) => line.includes(`tallygate ${command}`)).length).toBeGreaterThan(1)
})

test('an address with another prefix than that of the service is answered with the prefix', async () => {
  await using twin = await openTwin()
  const { origin, pathname } = new URL(twin.cloud.address)
  const asked = ['devices', 'list', '--url', `${origin}/other`, '--admin-key', twin.cloud.administrationKeyFile]
  const { err } = await tallygate(asked, { now: () => twin.now, readText: (path) => readFileSync(path, 'utf8') })
  expect(err).toContain(`The service is below ${pathname}.`)
})
