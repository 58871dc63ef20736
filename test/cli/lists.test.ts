// Commands that print a list, on a terminal and elsewhere.
import { expect, it } from 'vitest'
import { wholeProgram } from '../../src/cli/program.ts'
import { everyCommand, shapeOf } from '../../src/cli/shape.ts'
import { openTwin } from '../cloud/harness.ts'
import { fakeService, readAdminKey } from './fake-service.ts'
import { administering, tallygate } from './outside.ts'

it('has --wide in every command that lists', async () => {
  const io = { write: () => true }
  const world = { stdout: io, stderr: io, env: {}, now: () => 0, readText: () => '' }
  const stop = (): AbortSignal => new AbortController().signal
  const program = await wholeProgram({
    ...world,
    stop,
    ask: () => null,
    onHangup: () => undefined,
    exitWith: () => undefined,
  })
  const lists = [...everyCommand(shapeOf(program))].filter(({ path }) => path.at(-1) === 'list')
  expect(lists.length).toBeGreaterThan(14)
  const without = lists.filter(({ options }) => !options.some(({ long }) => long === '--wide'))
  expect(without.map(({ path }) => path.join(' '))).toEqual([])
})

it('fits the terminal, and is whole with --wide, as JSON and where it is no terminal', async () => {
  await using twin = await openTwin()
  const id = await twin.instance('customer-4711')
  const listed = async (isTTY: boolean, ...args: readonly string[]): Promise<string> => {
    let out = ''
    const stdout = { isTTY, columns: 80, write: (text: string) => (out += text) }
    await tallygate(['instances', 'list', ...args], { ...administering(twin), stdout })
    return out
  }
  const lines = (await listed(true)).trimEnd().split('\n')
  expect(lines.map((line) => line.length)).toEqual([58, 80])
  expect(lines[1]).toContain(`  ${id.slice(0, 18)}`)
  for (const whole of [await listed(false), await listed(true, '--wide'), await listed(true, '--json')]) {
    expect(whole).toContain(id)
  }
})

it.each([99, 100])('of %d sessions says whether the service may have more', async (count) => {
  const id = '00000000-0000-4000-8000-000000000000'
  const times = { chargedUntil: 0, lastHeartBeat: 0, lastAccessRequest: 0 }
  const body = Array.from({ length: count }, () => ({ sessionId: id, instanceId: id, state: 'IDLE', ...times }))
  await using cloud = await fakeService('tcp', { 'GET /dm/api/v1.1/sessions': { body } })
  await using agent = await fakeService('socket', { 'GET /api/v1.1/sessions': { body } })
  const atCloud = ['sessions', 'list', '--json', '--url', cloud.address, '--admin-key', '/admin.pem']
  const atAgent = ['session', 'list', '--json', '--socket', agent.address]
  for (const args of [atCloud, atAgent]) {
    const { code, out, err } = await tallygate(args, { readText: readAdminKey })
    expect([code, out.split('\n').length - 1]).toEqual([0, count])
    expect(err).toBe(count === 100 ? 'The list ends after the newest 100 sessions: there may be more.\n' : '')
  }
})
