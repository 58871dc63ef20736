// The whole way, with the processes and the command that an operator uses: an order at the twin, a change notification over the broker, a
// pull of the agent, and what an application on the device sees of it. The timer of the agent is out of the game.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { poll } from './poll.ts'
import { RemoteSite } from './remote-site.ts'

let remote: RemoteSite
beforeAll(async () => {
  remote = await RemoteSite.open(({ push, epoch }) => push === 'CONNECTED' && epoch === 1)
}, 60_000)
afterAll(async () => remote[Symbol.asyncDispose]())

const outstanding = async (): Promise<bigint> =>
  (await remote.shown()).outstanding.reduce((sum, { unreported }) => sum + unreported, 0n)
const billed = async (): Promise<bigint> =>
  (await remote.shown()).outstanding.reduce((sum, account) => sum + account.billed, 0n)

test(
  'a device follows what an administrator orders, from the first lock to the end of its service',
  { timeout: 60_000 },
  async () => {
    const { site } = remote
    await remote.askUntilGranted()

    // A changed rule arrives by a change notification.
    await site.change(2_000_000)
    await remote.until(({ policies: [policy] }) => policy !== undefined && policy.applied >= 3)

    await remote.devices('lock', remote.deviceId)
    const locked = await remote.until(({ suspension }) => suspension?.state === 'LOCKED')
    await expect(site.ask()).rejects.toThrow(/locked at \d{4}-.* by an administrator/)
    expect(locked.conditions).toContainEqual(expect.objectContaining({ code: 'DEVICE_LOCKED' }))
    expect(await remote.local('status')).toContain('stopped: locked by an administrator')
    expect(await remote.devices('list')).toContain('locked')

    // Over a restart, before the cloud has been heard.
    await site.stopAgent()
    await site.startAgent(null)
    await expect(site.ask()).rejects.toThrow(/locked/)
    await remote.until(({ push }) => push === 'CONNECTED')

    // What a locked device gives back stays with the pool.
    await remote.devices('drain', remote.deviceId)
    await poll(outstanding, (amount) => amount === 0n)

    await remote.devices('unlock', remote.deviceId)
    await remote.until(({ suspension }) => suspension === null)
    await remote.askUntilGranted()
    const spent = (await billed()) + 1_000_000n

    await remote.devices('terminate', remote.deviceId, '--yes')
    await remote.until(({ suspension, backlog }) => suspension?.state === 'TERMINATED' && backlog === 0)
    await expect(site.ask()).rejects.toThrow(/service of this device was ended/)
    await poll(billed, (amount) => amount === spent)
    await poll(outstanding, (amount) => amount === 0n)

    // The same key, the same ledger, the same device.
    await site.stopAgent()
    await site.startAgent(await site.enrollmentToken())
    const again = await remote.until(({ suspension, fenced, epoch }) => suspension === null && !fenced && epoch === 2)
    expect(again.deviceId).toBe(remote.deviceId)
    await remote.askUntilGranted()

    await remote.devices('revoke', remote.deviceId, '--yes')
    expect(await remote.devices('list')).toContain('revoked')
    const end = await remote.until(({ push, conditions }) => push === 'DISCONNECTED' && conditions.length > 0)
    expect(end.conditions).toEqual([
      expect.objectContaining({
        subject: 'revocation',
        code: 'DEVICE_REVOKED',
        message: expect.stringMatching(/ was revoked at \d{4}-.*Z by an administrator\.$/) as string,
      }),
    ])
    const report = await remote.local('status')
    expect(report).toContain('The key of this device was revoked')
    expect(report).not.toContain('BROKER_REFUSED')
    const orders = (await remote.audited()).match(/(un)?lock|terminate|drain|revoke/g)
    expect(orders).toEqual(['revoke', 'terminate', 'unlock', 'drain', 'lock'])
  },
)
