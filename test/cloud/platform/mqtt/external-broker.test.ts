// A real Mosquitto that requires a password, and lets devices read only.
import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { ExternalBroker } from '../../../../src/cloud/platform/mqtt/external-broker.ts'
import { NOTIFICATION_CLAIM_MS } from '../../../../src/cloud/devices/limits.ts'
import type { Transaction } from '../../../../src/cloud/storage/store.ts'
import { openSqliteStore } from '../../../../src/cloud/storage/sqlite/store.ts'
import { deviceTopic, policyTopic } from '../../../../src/protocol/push.ts'
import { Secret } from '../../../../src/settings/option.ts'
import { guardedMosquitto, mosquitto } from '../../../support/servers.ts'
import { EDGE, EdgeClient } from '../../devices/edge-client.ts'
import { type Twin, openTwin } from '../../harness.ts'
import { ServerProxy } from '../../../support/server-proxy.ts'
import { Listener } from './listener.ts'

const passwords = { twin: randomUUID(), policies: randomUUID(), device: randomUUID() }

const rights = [
  ...['user twin', 'topic write tallygate/v1/#'],
  ...['user policies', 'topic write tallygate/v1/instances/#'],
  ...['user device', 'topic read tallygate/v1/#'],
]
const guarded = guardedMosquitto('mosquitto with passwords', async () => ({
  users: passwords,
  rights,
  certificate: null,
}))

let twin: Twin | undefined
afterEach(async () => {
  await twin?.[Symbol.asyncDispose]()
  twin = undefined
})

const openWith = async (url: string, username: string | null, password: string | null): Promise<Twin> => {
  twin = await openTwin((settings) => ({
    ...settings,
    push: {
      ...settings.push,
      broker: 'external',
      url,
      username,
      password: password === null ? null : new Secret(password, 'a test'),
    },
  }))
  return twin
}

/** Runs a transaction by another connection to the same file. */
const ofTwin = async <T>(opened: Twin, work: (tx: Transaction) => Promise<T>): Promise<T> => {
  const path = join(opened.settings.store.path, 'twin.db')
  const store = openSqliteStore({ path, check: false, onBroken: () => undefined })
  try {
    return await store.transaction(work)
  } finally {
    await store.close()
  }
}

/** Change notifications that wait, published by this node or not. */
const waiting = (opened: Twin): Promise<number> =>
  ofTwin(opened, async (tx) => (await tx.outbox.claim(100, Number.MAX_SAFE_INTEGER, 0)).length)

/** Change notifications that no node is publishing. */
const unclaimed = async (opened: Twin): Promise<number> => {
  let found = -1
  const undo = new Error('undo')
  await ofTwin(opened, async (tx) => {
    found = (await tx.outbox.claim(100, opened.now, opened.now + NOTIFICATION_CLAIM_MS)).length
    throw undo
  }).catch((error: unknown) => {
    if (error !== undo) throw error
  })
  return found
}

describe('a twin with an external broker', () => {
  it('refuses credentials in its address, which devices get', async () => {
    await expect(openWith('mqtt://twin:s3cret@127.0.0.1:1', null, null)).rejects.toThrow(
      expect.objectContaining({ code: 'CONFIG_INVALID', message: expect.stringContaining('push.username') as string }),
    )
  })

  it('signs in, publishes each new revision, and retains the newest for later subscribers', async () => {
    const opened = await openWith(guarded.url, 'twin', passwords.twin)
    const device = { username: 'device', password: passwords.device }
    await using early = await Listener.connect(guarded.url, device)
    const instanceId = await opened.instance()
    await early.subscribe(policyTopic(instanceId))
    await opened.lineItem(instanceId)
    const heard = [await early.next()]
    while ((heard.at(-1)?.payload as { revision: number }).revision < 2) heard.push(await early.next())
    await using late = await Listener.connect(guarded.url, device)
    await late.subscribe(policyTopic(instanceId))
    expect(await late.next()).toEqual({
      topic: policyTopic(instanceId),
      payload: { instanceId, revision: 2 },
      retained: true,
    })
  })

  it('continues without change notifications when the broker refuses it', async () => {
    const opened = await openWith(guarded.url, 'twin', 'not the password')
    const instanceId = await opened.instance()
    expect((await opened.lineItem(instanceId)).status).toBeLessThan(300)
    expect(await waiting(opened)).toBeGreaterThan(0)
  })
})

describe('a broker that refuses some notifications', () => {
  it('receives the notifications that it permits', async () => {
    const opened = await openWith(guarded.url, 'policies', passwords.policies)
    const instanceId = await opened.instance()
    const { id } = await EdgeClient.join(opened, instanceId)
    await opened.call('POST', `${EDGE}/devices/${id}/release`)
    await using listener = await Listener.connect(guarded.url, { username: 'device', password: passwords.device })
    await listener.subscribe(policyTopic(instanceId))
    await opened.lineItem(instanceId)
    const heard = [await listener.next()]
    while ((heard.at(-1)?.payload as { revision: number }).revision < 2) heard.push(await listener.next())
    await vi.waitFor(async () => expect(await waiting(opened)).toBe(0))
  })
})

describe('a broker without passwords', () => {
  const open = mosquitto()

  it('is notified of each new revision as well', async () => {
    const opened = await openWith(open.url, null, null)
    const instanceId = await opened.instance()
    await using listener = await Listener.connect(open.url, {})
    await listener.subscribe(policyTopic(instanceId))
    await opened.lineItem(instanceId)
    const heard = [await listener.next()]
    while ((heard.at(-1)?.payload as { revision: number }).revision < 2) heard.push(await listener.next())
    expect(heard.at(-1)).toMatchObject({ topic: policyTopic(instanceId), payload: { instanceId, revision: 2 } })
  })
})

describe('a broker that fails', () => {
  const before = mosquitto()
  const after = mosquitto()

  /** A twin whose broker has published the first revision of an instance. */
  const openBehind = async (network: ServerProxy): Promise<{ opened: Twin; instanceId: string; topic: string }> => {
    const opened = await openWith(network.url, null, null)
    const instanceId = await opened.instance()
    const topic = policyTopic(instanceId)
    await using listener = await Listener.connect(before.url, {})
    await listener.subscribe(topic)
    await listener.next()
    return { opened, instanceId, topic }
  }

  it('gets the interrupted notifications as soon as it is connected again, while the clock stands still', async () => {
    await using network = await ServerProxy.open(before.url)
    const { opened } = await openBehind(network)
    const deviceId = randomUUID()
    await using listener = await Listener.connect(before.url, {})
    await listener.subscribe(deviceTopic(deviceId))
    network.fallInactive()
    await ofTwin(opened, (tx) => tx.outbox.append([{ kind: 'device', deviceId, reason: 'sync' }], opened.now))
    const looked = opened.tick()
    await expect.poll(async () => await unclaimed(opened)).toBe(0)
    const open = await network.refuse()
    network.speakAgain()
    await open()
    expect((await listener.next()).payload).toEqual({ reason: 'sync' })
    await looked
  })

  it('gets its retained messages again after it lost them', async () => {
    await using network = await ServerProxy.open(before.url)
    const { instanceId, topic } = await openBehind(network)
    await using listener = await Listener.connect(after.url, {})
    await listener.subscribe(topic)
    network.leadTo(after.url)
    network.cutAll()
    expect((await listener.next()).payload).toEqual({ instanceId, revision: 1 })
    await using late = await Listener.connect(after.url, {})
    await late.subscribe(topic)
    expect(await late.next()).toMatchObject({ payload: { instanceId, revision: 1 }, retained: true })
  })

  it('is connected again after it acknowledged nothing for a while', async () => {
    await using network = await ServerProxy.open(before.url)
    let connected = Promise.withResolvers<undefined>()
    const broker = new ExternalBroker({
      url: network.url,
      username: null,
      password: null,
      ca: null,
      clientId: randomUUID(),
      acknowledgeTimeoutMs: 50,
      onConnect: () => connected.resolve(undefined),
      onPresence: () => undefined,
      fraction: () => 0,
      log: { info: () => undefined, warn: () => undefined },
    })
    try {
      await connected.promise
      connected = Promise.withResolvers<undefined>()
      network.fallInactive()
      await expect(broker.publish({ topic: randomUUID(), payload: '', retain: false })).rejects.toThrow('no response')
      network.speakAgain()
      await connected.promise
    } finally {
      await broker.close()
    }
  })
})
