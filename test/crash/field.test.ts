// What goes wrong in the field, on the real programs: a second agent on the same state, a power switch at the worst moment
// of the first start, a disk that is full, a stop under load, an application that mixes up its requests.
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { DeviceAudit } from '../../crash/audit/device.ts'
import type { Applications } from '../../crash/site/applications.ts'
import { Service } from '../../crash/site/service.ts'
import type { Site } from '../../crash/site/site.ts'
import { killedAt } from '../../crash/trace/strace.ts'
import { HttpClient } from '../../src/client/http.ts'
import { deviceList } from '../../src/protocol/edge/administration.ts'
import { fillDisk, smallDisk } from '../support/mounts.ts'
import { needsStrace } from '../support/strace.ts'
import { copyOf, expectUseBilled, openApplications, useSiteWithDevices } from './provisioned-site.ts'

const LIMIT_MS = 120_000

let site: Site
useSiteWithDevices((opened) => (site = opened))

const applications = (): Applications => openApplications(site, { applications: 4, inFlight: 8 })

const answered = (apps: Applications, count: number): Promise<void> =>
  expect.poll(() => apps.told.length, { timeout: 30_000, interval: 10 }).toBeGreaterThanOrEqual(count)

/** The ledger of the device, whose agent is gone. */
function ledger(epoch = 1): DeviceAudit {
  const audit = new DeviceAudit(epoch)
  audit.read(copyOf(join(site.agentState, 'journal.db')))
  return audit
}

/** The twin knows the device for what it is, and has billed what it has used. */
async function expectEqualBooks(): Promise<void> {
  const deviceId = await expectUseBilled(site)
  using twin = site.administrator()
  const query = `?instanceId=${site.instanceId}`
  const { devices } = await twin.json({ method: 'GET', path: `/edge/api/v1/devices${query}` }, deviceList)
  expect(devices.find(({ id }) => id === deviceId)).toMatchObject({ forked: false, rejected: false, backlog: 0 })
}

describe('a second agent on the same state', () => {
  it(
    'ends with a code of its own, and the first one does not notice',
    async () => {
      site.startAgent()
      await site.agentServes()
      const apps = applications()
      apps.begin()
      await answered(apps, 50)
      for (const socket of [site.socketPath, join(site.directory, 'other.sock')]) {
        const log = join(site.directory, 'second.log')
        const flags = [`--state-directory=${site.agentState}`, `--socket-path=${socket}`, '--push-enabled=false']
        const second = new Service({ args: ['agent', ...flags], logFile: log })
        expect(await second.ended).toBe(75)
        await expect(second.listening).rejects.toThrow('STATE_IN_USE')
      }
      await answered(apps, apps.told.length + 50)
      await apps.end()
      expect(apps.repeats + apps.unanswered).toBe(0)
      await expectEqualBooks()
      await site.agent?.end('SIGKILL')
      expect(ledger().ledger.size).toBe(apps.told.length)
    },
    LIMIT_MS,
  )
})

describe('a first start that is killed', () => {
  it.for([
    ['while the database is made', 'fsync', 5],
    ['before the key has its name', 'link', 1],
    ['before the identity that the cloud gave is written', 'pwrite64', 41],
    ['before the identity is flushed', 'fsync', 12],
    ['before the epoch that the cloud gave is written', 'pwrite64', 43],
    ['before the policy is flushed', 'fsync', 14],
  ] as const)('%s is made up for by the next one', { timeout: LIMIT_MS }, async ([, call, number], context) => {
    needsStrace(context)
    site.startAgent(killedAt(call, number))
    expect(await site.agent?.ended).toBe('SIGKILL')
    site.startAgent()
    const { epoch } = await site.agentServes()
    const apps = applications()
    apps.begin()
    await answered(apps, 20)
    await apps.end()
    await expectEqualBooks()
    await site.agent?.end('SIGKILL')
    // An answer to an attach that was not kept is never taken: the next one makes another epoch.
    expect(epoch).toBeLessThanOrEqual(2)
    const { ledger: entries } = ledger(epoch)
    expect(entries.size).toBe(apps.told.length)
    for (const { correlationId } of apps.told) expect(entries.find(correlationId)).toBeDefined()
  })
})

describe('a state directory on a disk that is full at the start', () => {
  const start = (state: string): Service => {
    const flags = ['--push-enabled=false', `--state-directory=${state}`, `--socket-path=${site.socketPath}`]
    const token = join(site.directory, 'enrollment-token')
    const args = ['agent', ...flags, `--enrollment-token-file=${token}`, '--sync-interval=1s']
    const service = new Service({ args, logFile: join(site.directory, 'agent.log') })
    site.agent = service
    return service
  }

  it(
    'is refused with a code while the disk is full, and used when it has space',
    { timeout: LIMIT_MS },
    async (context) => {
      const disk = smallDisk(context.skip, '40m')
      const freeSpace = fillDisk(disk)
      const refused = start(join(disk, 'state'))
      expect(await refused.ended).toBe(73)
      await expect(refused.listening).rejects.toThrow('STATE_UNWRITABLE')
      freeSpace()
      start(join(disk, 'state'))
      await site.agentServes()
    },
  )

  it(
    'keeps a device from deciding, not from running; it decides when the disk has space',
    { timeout: LIMIT_MS },
    async (context) => {
      const disk = smallDisk(context.skip, '40m')
      const state = join(disk, 'state')
      start(state)
      await site.agentServes()
      await site.agent?.end('SIGKILL')
      rmSync(join(state, 'journal.db-disk-reserve'))
      const freeSpace = fillDisk(disk)
      start(state)
      await site.until('it runs', ({ epoch }) => epoch === 1)
      using application = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
      const ask = () =>
        application.text({
          method: 'POST',
          path: `/elastic/api/v1.1/instances/${site.instanceId}/access-request`,
          body: { requester: { type: 'user', value: 'ada' }, requestedItems: [{ item: 'press', count: 1 }] },
        })
      await expect(ask()).rejects.toMatchObject({ code: 'NOT_RECORDED' })
      freeSpace()
      await expect.poll(() => ask().then(() => 'decided', String), { timeout: 20_000 }).toBe('decided')
    },
  )
})

describe('an agent that is asked to stop under load', () => {
  it(
    'records just what it answers, and answers what it has read',
    async () => {
      site.startAgent()
      await site.agentServes()
      const apps = applications()
      apps.begin()
      await answered(apps, 200)
      expect(await site.agent?.end('SIGTERM')).toBe(0)
      const told = apps.told.map(({ correlationId }) => correlationId)
      apps[Symbol.dispose]()
      await apps.end()
      expect(apps.told).toHaveLength(told.length)
      const { ledger: entries } = ledger()
      // Not one more: what was read before the stop was answered, and what was not read was not recorded.
      expect([...entries.after(0)].map(({ correlationId }) => correlationId).sort()).toEqual(told.sort())
    },
    LIMIT_MS,
  )
})

describe('an application that uses the number of a request for another one', () => {
  it(
    'is refused, also after the agent was killed, and charged once',
    async () => {
      site.startAgent()
      await site.agentServes()
      using application = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
      const ask = (count: number) =>
        application.call({
          method: 'POST',
          path: `/elastic/api/v1.1/instances/${site.instanceId}/access-request`,
          headers: { 'x-tallygate-session': '64d2028c-ae87-4069-a624-66089d957ef9', 'x-tallygate-request': '1' },
          body: { requester: { type: 'user', value: 'ada' }, requestedItems: [{ item: 'press', count }] },
        })
      const first = await ask(3)
      expect(first.status).toBe(200)
      for (let life = 0; life < 2; life += 1) {
        const other = await ask(4)
        expect(JSON.parse(other.text)).toMatchObject({ code: 'IDEMPOTENCY_CONFLICT' })
        expect(other.status).toBe(409)
        expect(await ask(3)).toEqual(first)
        await site.agent?.end('SIGKILL')
        expect(ledger().ledger.size).toBe(1)
        site.startAgent()
        await site.agent?.listening
      }
      await expectEqualBooks()
    },
    LIMIT_MS,
  )
})
