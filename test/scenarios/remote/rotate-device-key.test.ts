// The key of a device is replaced with the processes and commands that people use, under a load of decisions.
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { deviceEvidence } from '../../../src/protocol/edge/administration.ts'
import { poll } from './poll.ts'
import { RemoteSite } from './remote-site.ts'

let remote: RemoteSite
beforeAll(async () => {
  remote = await RemoteSite.open(({ push, accounts }) => push === 'CONNECTED' && accounts.length > 0)
}, 60_000)
afterAll(async () => remote[Symbol.asyncDispose]())

test(
  'every request is granted while the key is replaced, by either order, and both ledgers are equal afterwards',
  { timeout: 90_000 },
  async () => {
    const { site } = remote
    const shown = () => remote.shown()
    const load = { granted: 0, failed: [] as string[], isOver: false }
    const worker = async (): Promise<void> => {
      while (!load.isOver) {
        const answer = await site.ask().catch(String)
        if (answer.includes('"1001"')) load.granted += 1
        else load.failed.push(answer)
      }
    }
    const { key: first } = await site.status()
    const workers = [worker(), worker(), worker(), worker()]
    await poll(
      async () => load.granted,
      (granted) => granted > 50,
    )

    const before = load.granted
    const out = await remote.local('rotate-key')
    const second = (await site.status()).key.id
    expect(out).toBe(`The key of this device is now ${second}. It replaced ${first.id}.\n`)
    await poll(shown, ({ key }) => key.id === second)
    expect(load.granted).toBeGreaterThan(before)

    await remote.devices('rotate-key', remote.deviceId)
    const { key: third } = await remote.until(({ key }) => key.id !== second)
    await poll(shown, ({ key }) => key.id === third.id && !key.rotationRequested)
    // Change notifications come by a connection of the key in use.
    await remote.until(({ push }) => push === 'CONNECTED')

    load.isOver = true
    await Promise.all(workers)
    expect(load.failed).toEqual([])
    expect(load.granted).toBeGreaterThan(before)

    await site.stopAgent()
    await site.startAgent(null)
    expect((await remote.until(({ connected }) => connected)).key.id).toBe(third.id)
    await remote.askUntilGranted()
    load.granted += 1

    // Brings what is left to the twin.
    await remote.devices('drain', remote.deviceId)
    const { lastEntry, accounts, conditions } = await remote.until(({ backlog, unacknowledgedSeq }) => {
      return backlog === 0 && unacknowledgedSeq === null
    })
    expect(conditions).toEqual([])
    expect(lastEntry).toBe(load.granted)
    const used = accounts.reduce((sum, { used }) => sum + used, 0n)
    expect(used).toBe(BigInt(load.granted) * 1_000_000n)
    const device = await poll(shown, ({ outstanding }) => {
      return outstanding.reduce((sum, { billed }) => sum + billed, 0n) === used
    })
    expect(device).toMatchObject({ forked: false, rejected: false, epoch: 1, key: { id: third.id } })
    using client = await site.administrator()
    const evidence = await client.json(
      { method: 'GET', path: `/edge/api/v1/devices/${remote.deviceId}/evidence` },
      deviceEvidence,
    )
    expect(evidence.evidence).toEqual([])

    expect(await remote.local('status', '--all')).toMatch(new RegExp(`^key +${third.id}, for `, 'm'))
    expect(await remote.tallygate('verify', '--db', join(remote.directory, 'agent', 'journal.db'))).toMatch(
      /^The ledger in .* is intact/,
    )
    const orders = (await remote.audited()).match(/(rotate|replace) device key|drain/g)
    expect(orders).toEqual(['drain', 'replace device key', 'rotate device key', 'replace device key'])
    // No line of either log has a private key in it.
    for (const log of ['agent.log', 'cloud.log']) {
      expect(await readFile(join(remote.directory, log), 'utf8')).not.toContain('PRIVATE KEY')
    }
  },
)
