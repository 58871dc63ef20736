// Two twins as processes, one PostgreSQL, one hot line item. Whatever happens to a node, the books agree with each other and
// with every answer that a client got.
import { randomUUID } from 'node:crypto'
import { cp, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { PostgresSchema, runSql, usageIn } from '../../support/postgres-schema.ts'
import { PG_DUMP, backUpSchema } from '../../support/schema-backup.ts'
import { postgres } from '../../support/servers.ts'
import { TwinProcess } from '../../cloud/twin-process.ts'
import { newKeyPair, pick, text } from '../../cloud/harness.ts'
import { poll } from '../remote/poll.ts'

/** What one request charges: not a whole token, so that a sum by floating point would be off. */
const RATE = 0.1

interface Granted {
  readonly correlationId: string
  readonly micro: bigint
}

interface Load {
  readonly granted: Granted[]
  refused: number
  /** Answers that are not one to the request, by status; 0: no answer. */
  readonly failed: number[]
}

describe('two nodes over one PostgreSQL', () => {
  const server = postgres()
  let schema: PostgresSchema
  let directory: string
  let nodes: [TwinProcess, TwinProcess]
  let token: string
  let instance: string

  const open = async (): Promise<void> => {
    schema = await PostgresSchema.create(server.url)
    directory = await mkdtemp(join(tmpdir(), 'tallygate-nodes-'))
    const first = await startNode('first')
    // What a node makes for itself at its first start belongs to all of them.
    const filter = (path: string): boolean => basename(path) !== 'sales.mark'
    await cp(join(directory, 'first'), join(directory, 'second'), { recursive: true, filter })
    nodes = [first, await startNode('second')]
    token = await makeAccessToken({
      kind: 'ADMIN',
      privateKey: await readFile(join(directory, 'first', 'administration-key.pem'), 'utf8'),
      instanceIds: [],
      issuer: 'tests',
      now: Date.now(),
      lifetimeMs: 3_600_000,
    })
  }
  const close = async (): Promise<void> => {
    for (const node of nodes) await node[Symbol.asyncDispose]()
    await schema[Symbol.asyncDispose]()
    await rm(directory, { recursive: true, force: true })
  }

  const startNode = (name: string): Promise<TwinProcess> =>
    TwinProcess.start(['--db', schema.url, '--store-path', join(directory, name)])

  const call = async (node: TwinProcess, method: string, path: string, body?: unknown, caller = token) => {
    const response = await fetch(`${node.address}${path}`, {
      method,
      headers: {
        authorization: `Bearer ${caller}`,
        connection: 'close',
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    const said = await response.text()
    return { status: response.status, body: (said === '' ? undefined : JSON.parse(said)) as unknown }
  }

  /** An instance with one line item, made by one node and known to the other. */
  const hotLineItem = async (quantity: number): Promise<void> => {
    const made = await call(nodes[0], 'POST', '/provisioning/api/v1.1/instances', {
      shortName: 'hot',
      accountId: 'customer',
    })
    instance = text(made.body, 'id')
    const now = Date.now()
    const rates = { effectiveFrom: now - 1_000, version: randomUUID(), items: [{ name: 'Print', rate: RATE }] }
    expect((await call(nodes[1], 'POST', '/provisioning/api/v1.1/rate-tables', rates)).status).toBe(201)
    const mapped = await call(nodes[1], 'PUT', `/provisioning/api/v1.1/instances/${instance}/line-items`, {
      activationId: 'HOT',
      state: 'DEPLOYED',
      quantity,
      start: now - 1_000,
      end: now + 3_600_000,
      attributes: { elastic: true },
    })
    expect(mapped.status).toBeLessThan(300)
  }

  /** So many clients of each node, each sending its next request when the last one was answered, until they are stopped. */
  const load = (clients: number, requests: number): { readonly result: Load; readonly done: Promise<unknown> } => {
    const result: Load = { granted: [], refused: 0, failed: [] }
    const client = async (node: TwinProcess): Promise<void> => {
      for (let sent = 0; sent < requests; sent += 1) {
        const answer = await call(node, 'POST', `/elastic/api/v1.1/instances/${instance}/access-request`, {
          requester: { type: 'user', value: 'LisaBarry' },
          requestedItems: [{ item: 'Print', count: 1 }],
        }).catch(() => ({ status: 0, body: undefined }))
        if (answer.status !== 200) {
          result.failed.push(answer.status)
          if (answer.status === 0) return
          continue
        }
        const { correlationId, requestedItems } = answer.body as {
          correlationId: string
          requestedItems: [{ totalTokensCharged: number }]
        }
        const charged = requestedItems[0].totalTokensCharged
        if (charged === 0) result.refused += 1
        else result.granted.push({ correlationId, micro: BigInt(Math.round(charged * 1e6)) })
      }
    }
    const done = Promise.all(nodes.flatMap((node) => Array.from({ length: clients }, () => client(node))))
    return { result, done }
  }

  const books = async (): Promise<{ charged: bigint; cap: bigint; granted: ReadonlyMap<string, bigint> }> => {
    const [account] = await runSql<{ charged: string; cap: string }>(
      schema.url,
      `SELECT charged::text, cap_in_force::text AS cap FROM accounts WHERE instance_id = '${instance}'`,
    )
    const rows = (await usageIn(schema.url)).filter(
      ({ instanceId, status }) => instanceId === instance && status === 'GRANTED',
    )
    const granted = new Map(rows.map(({ correlationId, tokens }) => [correlationId, tokens]))
    // One record for one charge.
    expect(granted.size).toBe(rows.length)
    return { charged: BigInt(account?.charged ?? '0'), cap: BigInt(account?.cap ?? '0'), granted }
  }

  const sum = (amounts: Iterable<bigint>): bigint => [...amounts].reduce((total, amount) => total + amount, 0n)

  /** One client of a node asks for one print after another until it is refused; how many it got, and why not more. */
  const sellAll = async (node: TwinProcess, most = Infinity): Promise<{ sold: number; refused: string }> => {
    for (let sold = 0; ; sold += 1) {
      if (sold === most) return { sold, refused: '' }
      const { body } = await call(node, 'POST', `/elastic/api/v1.1/instances/${instance}/access-request`, {
        requester: { type: 'user', value: 'LisaBarry' },
        requestedItems: [{ item: 'Print', count: 1 }],
      })
      const code = text(body, 'requestedItems', 0, 'status', 'code')
      if (code !== '1001') return { sold, refused: code }
    }
  }

  const recovery = async (node: TwinProcess) =>
    (await call(node, 'GET', `/edge/api/v1/instances/${instance}/recovery`)).body

  const turns = async (): Promise<readonly number[]> => {
    const rows = await runSql<{ turn: number }>(schema.url, 'SELECT turn::int AS turn FROM sales_marks')
    return rows.map(({ turn }) => turn)
  }

  describe('that stay', () => {
    let isOpen = false
    // The address of the server is not known in a hook before all tests.
    beforeEach(async () => {
      if (!isOpen) await open()
      isOpen = true
    })
    afterAll(async () => {
      if (isOpen) await close()
    })

    it('never charge more than there is, and every answer is in the books once', { timeout: 120_000 }, async () => {
      await hotLineItem(20)
      const { result, done } = load(8, 20)
      await done
      expect(result.failed).toEqual([])
      expect(result.granted).toHaveLength(200)
      expect(result.refused).toBe(120)
      const { charged, cap, granted } = await books()
      expect(cap).toBe(20_000_000n)
      expect(charged).toBe(20_000_000n)
      expect(granted).toEqual(new Map(result.granted.map(({ correlationId, micro }) => [correlationId, micro])))
      for (const node of nodes) {
        const shown = await call(node, 'GET', `/provisioning/api/v1.1/instances/${instance}/line-items/HOT`)
        expect(shown.body).toMatchObject({ used: 20, quantity: 20 })
        expect(node.complaints).toEqual([])
      }
    })

    it('refuse a token whose key no store could hold, and no other request at that moment', async () => {
      const odd = await makeAccessToken({
        kind: 'ADMIN',
        privateKey: newKeyPair().privatePem,
        keyId: 'a\0b',
        instanceIds: [],
        issuer: 'tests',
        now: Date.now(),
        lifetimeMs: 3_600_000,
      })
      const asked = Array.from({ length: 30 }, (_, index) =>
        call(nodes[0], 'GET', '/api/v1.1/public-keys', undefined, index % 3 === 1 ? odd : token),
      )
      const statuses = (await Promise.all(asked)).map(({ status }) => status)
      expect(statuses).toEqual(Array.from({ length: 10 }, () => [200, 401, 200]).flat())
    })

    it('forget a key that the other one has deleted, at once', { timeout: 120_000 }, async () => {
      const { privatePem, publicPem } = newKeyPair()
      const keys = '/api/v1.1/administration-keys'
      expect((await call(nodes[0], 'PUT', keys, [{ id: 'passing', publicKey: publicPem }])).status).toBeLessThan(300)
      const passing = await makeAccessToken({
        kind: 'ADMIN',
        privateKey: privatePem,
        keyId: 'passing',
        instanceIds: [],
        issuer: 'tests',
        now: Date.now(),
        lifetimeMs: 3_600_000,
      })
      const ask = async (): Promise<number[]> => {
        const asked = nodes.map((node) => call(node, 'GET', '/api/v1.1/public-keys', undefined, passing))
        return (await Promise.all(asked)).map(({ status }) => status)
      }
      for (let times = 0; times < 3; times += 1) expect(await ask()).toEqual([200, 200])
      expect((await call(nodes[1], 'DELETE', `${keys}/passing`)).status).toBeLessThan(300)
      expect(await ask()).toEqual([401, 401])
    })

    it('continue a session that the other one began, and end it once', { timeout: 120_000 }, async () => {
      await hotLineItem(1_000)
      const opened = await call(nodes[0], 'POST', '/api/v1.1/sessions', { instanceId: instance })
      const session = text(opened.body, 'sessionId')
      const asked = await call(nodes[1], 'PUT', `/api/v1.1/sessions/${session}`, {
        requester: { type: 'user', value: 'LisaBarry' },
        rollbackOnDeny: true,
        requestedItems: [{ item: 'Print', count: 100 }],
      })
      expect(asked.status).toBe(200)
      expect((await books()).charged).toBe(10_000_000n)
      const closed = await Promise.all(
        [...nodes, ...nodes].map((node) => call(node, 'DELETE', `/api/v1.1/sessions/${session}`)),
      )
      expect(closed.filter(({ status }) => status < 300)).toHaveLength(1)
      const usage = await usageIn(schema.url)
      expect(usage.filter(({ instanceId, status }) => instanceId === instance && status === 'REFUNDED')).toHaveLength(1)
    })

    it('must sign with the same key: a node with another one does not start', { timeout: 120_000 }, async () => {
      await expect(startNode('stranger')).rejects.toThrow('ended with 78')
      await expect(readFile(join(directory, 'stranger', 'signing-key.pem'))).rejects.toMatchObject({ code: 'ENOENT' })
      await cp(join(directory, 'first', 'signing-key.pem'), join(directory, 'stranger', 'signing-key.pem'))
      await using third = await startNode('stranger')
      expect(third.complaints).toEqual([])
    })
  })

  describe('when one ends', () => {
    beforeEach(open)
    afterEach(close)

    it('lose nothing when one of them is asked to stop under load', { timeout: 120_000 }, async () => {
      await hotLineItem(1_000)
      const { result, done } = load(4, 60)
      await until(() => result.granted.length >= 40)
      expect(await nodes[0].end('SIGTERM')).toBe(0)
      await done
      // A node that stops answers what it has taken on, and says no to the rest.
      expect(result.failed.every((status) => status === 0 || status === 503)).toBe(true)
      const { charged, granted } = await books()
      expect(granted).toEqual(new Map(result.granted.map(({ correlationId, micro }) => [correlationId, micro])))
      expect(charged).toBe(sum(granted.values()))
    })

    it('keep exact books when one of them is killed under load', { timeout: 120_000 }, async () => {
      await hotLineItem(1_000)
      const { result, done } = load(4, 60)
      await until(() => result.granted.length >= 40)
      await nodes[0].end('SIGKILL')
      await done
      const { charged, granted } = await books()
      expect(charged).toBe(sum(granted.values()))
      // The books have all answered requests, and may have others that the dead node could not answer in time.
      for (const { correlationId, micro } of result.granted) expect(granted.get(correlationId)).toBe(micro)
      expect(granted.size - result.granted.length).toBeLessThanOrEqual(4)
      // The other one continues: what the dead one had locked is free.
      expect(result.granted.length).toBeGreaterThanOrEqual(240)
      expect(nodes[1].complaints).toEqual([])
    })

    it.skipIf(PG_DUMP === undefined)(
      'sell nothing after a restore until each has shown what it had sold',
      { timeout: 120_000 },
      async () => {
        await hotLineItem(5)
        await sellAll(nodes[0], 3)
        const putBack = await backUpSchema(server.url, schema.url)
        // Only the second one sells after the backup; the first one does not know of it.
        expect(await sellAll(nodes[1], 40)).toMatchObject({ sold: 40 })
        await until(async () => (await turns()).every((turn) => turn > 3))
        for (const node of nodes) await node.end('SIGKILL')
        await putBack()
        nodes[0] = await startNode('first')
        expect(await sellAll(nodes[0])).toEqual({ sold: 0, refused: '2011' })
        expect(await recovery(nodes[0])).toMatchObject({ unproven: 'NODE' })
        nodes[1] = await startNode('second')
        await until(async () => pick(await recovery(nodes[0]), 'unproven') === null)
        expect((await sellAll(nodes[0], 3)).sold + (await sellAll(nodes[1])).sold).toBe(7)
        expect(await sellAll(nodes[0])).toEqual({ sold: 0, refused: '2011' })
      },
    )

    it(
      'take in a node that has no sales mark while one of them works, and not without',
      { timeout: 120_000 },
      async () => {
        await hotLineItem(5)
        await sellAll(nodes[1], 10)
        await nodes[0].end('SIGTERM')
        await rm(join(directory, 'first', 'sales.mark'))
        nodes[0] = await startNode('first')
        expect(nodes[0].complaints).toEqual([])
        expect(await sellAll(nodes[0], 1)).toMatchObject({ sold: 1 })
        for (const node of nodes) await node.end('SIGTERM')
        await rm(join(directory, 'second', 'sales.mark'))
        nodes[1] = await startNode('second')
        expect(await sellAll(nodes[1])).toEqual({ sold: 0, refused: '2011' })
        expect(await recovery(nodes[1])).toMatchObject({ unproven: 'MARK' })
      },
    )
  })
})

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  await poll(async () => condition(), Boolean)
}
