// A real Mosquitto that requires a password, and lets devices read only.
import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { openSqliteStore } from '../../../../src/cloud/storage/sqlite/store.ts'
import { policyTopic } from '../../../../src/protocol/push.ts'
import { Secret } from '../../../../src/settings/option.ts'
import { guardedMosquitto, mosquitto } from '../../../support/servers.ts'
import { type Twin, openTwin } from '../../harness.ts'
import { Listener } from './listener.ts'

const passwords = { twin: randomUUID(), device: randomUUID() }

const rights = ['user twin', 'topic write tallygate/v1/#', 'user device', 'topic read tallygate/v1/#']
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
      password: password === null ? null : new Secret(password),
    },
  }))
  return twin
}

/** Change notifications that wait, seen from another connection to the same file. */
const waiting = async (opened: Twin): Promise<number> => {
  const path = join(opened.settings.store.path, 'twin.db')
  const store = openSqliteStore({ path, check: false, onBroken: () => undefined })
  try {
    const claimed = await store.transaction((tx) => tx.outbox.claim(100, Number.MAX_SAFE_INTEGER, 0))
    return claimed.length
  } finally {
    await store.close()
  }
}

describe('a twin with an external broker', () => {
  it('signs in, publishes each new revision, and leaves the newest for who comes later', async () => {
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

  it('continues without change notifications when the broker does not let it in', async () => {
    const opened = await openWith(guarded.url, 'twin', 'not the password')
    const instanceId = await opened.instance()
    expect((await opened.lineItem(instanceId)).status).toBeLessThan(300)
    expect(await waiting(opened)).toBeGreaterThan(0)
  })
})

describe('a broker without passwords', () => {
  const open = mosquitto()

  it('hears of each new revision as well', async () => {
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
