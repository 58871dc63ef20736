// Pools that are empty while every device wants more: each sync asks other devices for tokens, on two nodes at once.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../../src/core/accounts/account.ts'
import { openPostgresStore } from '../../../../src/cloud/storage/postgres/store.ts'
import { runSql } from '../../../support/postgres-schema.ts'
import { postgres } from '../../../support/servers.ts'
import { TestDevice, topUpRequest } from '../test-device.ts'
import { INSTANCE, Twin } from '../twin.ts'

const ITEMS = ['A', 'B', 'C']
const ACCOUNTS = ITEMS.map((id) => lineAccount(INSTANCE, id, 0))
const DEVICES = 8
const ROUNDS = 40

describe('two nodes on one PostgreSQL whose pools are empty', () => {
  const server = postgres()
  /** Of its own, because PostgreSQL counts deadlocks by database. */
  let database: string
  let nodes: Twin[]
  const reruns: string[] = []

  beforeEach(async () => {
    reruns.length = 0
    database = `test_${randomUUID().replaceAll('-', '')}`
    await runSql(server.url, `CREATE DATABASE ${database}`)
    const url = new URL(server.url)
    url.pathname = `/${database}`
    const open = () =>
      openPostgresStore({
        url: url.href,
        onConnectionLost: () => undefined,
        onRerun: (cause) => reruns.push(String(cause)),
      })
    const first = await Twin.over(await open())
    nodes = [first, await first.anotherNode(await open())]
  })
  afterEach(async () => {
    await runSql(server.url, `DROP DATABASE ${database} WITH (FORCE)`)
  })

  it('has no deadlocks while devices ask each other for tokens and give them back', { timeout: 180_000 }, async () => {
    const [first] = nodes
    if (first === undefined) throw new Error('there are two nodes')
    for (const id of ITEMS) await first.setLineItem(id, { quantity: 100n })
    const devices: TestDevice[] = []
    for (let n = 0; n < DEVICES; n += 1) {
      const device = await TestDevice.join(nodes[n % nodes.length] ?? first)
      // All tokens are with half of the devices, so that the others have a device to recall from.
      await device.sync(n % 2 === 0 ? ACCOUNTS.map((account) => topUpRequest(account, 0n, 25n)) : [])
      devices.push(device)
    }

    for (let round = 0; round < ROUNDS; round += 1) {
      for (const node of nodes) node.time += node.terms.syncEveryMs
      await Promise.all(
        devices.map(async (device, n) => {
          // Not all of them, so that some devices are asked for accounts that their segment does not name.
          const accounts = ACCOUNTS.filter((_, index) => (n + round + index) % ACCOUNTS.length !== 0)
          const topUpRequests = accounts.map((account) => topUpRequest(account, 50n, device.available(account) + 5n))
          const answer = await device.sync(topUpRequests)
          if (answer.outcome !== 'MERGED') throw new Error(answer.outcome)
          for (const { account, keep } of answer.releases) device.giveBack(account, keep)
        }),
      )
    }

    for (const account of ACCOUNTS) {
      const held = devices.reduce(
        (sum, device) => sum + device.counters(account).granted - device.counters(account).returned,
        0n,
      )
      expect(held).toBeLessThanOrEqual(100n)
    }
    for (const node of nodes) await node[Symbol.asyncDispose]()
    // A connection reports what it has counted when it ends.
    const [counted] = await runSql<{ deadlocks: string }>(
      server.url,
      `SELECT deadlocks FROM pg_stat_database WHERE datname = '${database}'`,
    )
    expect({ deadlocks: Number(counted?.deadlocks), reruns }).toEqual({ deadlocks: 0, reruns: [] })
  })
})
