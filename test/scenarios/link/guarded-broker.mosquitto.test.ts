// A device and the real twin at a real Mosquitto with TLS, users and rights: change notifications arrive, and where the broker cannot be used the
// device says why, in words of the error catalogue, and finds everything by its timer.
import { randomUUID } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { BROKER_CHANGE_GAP_MS } from '../../../src/agent/sync/limits.ts'
import type { MqttPushOptions } from '../../../src/agent/platform/mqtt/mqtt-push.ts'
import { SYNC } from '../../agent/sync/test-device.ts'
import { Secret } from '../../../src/settings/option.ts'
import { openTwin, type Twin } from '../../cloud/harness.ts'
import { Authority, type Certified } from '../../support/certificates.ts'
import { type BrokerGuard, guardedMosquitto } from '../../support/servers.ts'
import { deviceAt, notificationsOnce } from './device-at-twin.ts'
import type { TestDevice } from '../../agent/sync/test-device.ts'

const users = { twin: randomUUID(), fleet: randomUUID() }
const rights = [
  'user twin',
  'topic write tallygate/v1/#',
  'topic read tallygate/v1/devices/+/presence',
  'pattern read tallygate/v1/instances/+/policy',
  'pattern read tallygate/v1/devices/%c/notification',
  'pattern write tallygate/v1/devices/%c/presence',
]
const guard = (certificate: Certified): BrokerGuard => ({ users, rights, certificate })

let authority: Authority
let directory = ''
beforeAll(async () => {
  authority = await Authority.make()
  directory = await mkdtemp(join(tmpdir(), 'tallygate-guarded-'))
  await writeFile(join(directory, 'ca.pem'), authority.certificate)
})
afterAll(async () => {
  await authority[Symbol.asyncDispose]()
  await rm(directory, { recursive: true, force: true })
})

interface Site {
  readonly twin: Twin
  /** What the twin has logged with a code. */
  readonly said: { readonly code: string; readonly msg: string }[]
  readonly device: TestDevice
  readonly instanceId: string
}

async function openSite(
  url: string,
  change: {
    readonly twinPassword?: string
    readonly twinCa?: string | null
    readonly push?: Partial<MqttPushOptions>
  } = {},
): Promise<Site> {
  const said: Site['said'] = []
  const log = pino({ level: 'info' }, { write: (line) => void said.push(JSON.parse(line) as Site['said'][number]) })
  const twin = await openTwin(
    (settings) => ({
      ...settings,
      push: {
        ...settings.push,
        broker: 'external',
        url,
        username: 'twin',
        password: new Secret(change.twinPassword ?? users.twin, 'a test'),
        caFile: change.twinCa === undefined ? join(directory, 'ca.pem') : change.twinCa,
      },
    }),
    log,
  )
  onTestFinished(() => twin[Symbol.asyncDispose]())
  const instanceId = await twin.shop()
  const push = notificationsOnce({
    extraCa: authority.certificate,
    username: 'fleet',
    password: users.fleet,
    ...change.push,
  })
  const device = await deviceAt(twin, instanceId, push)
  await device.start()
  await device.settle()
  return { twin, said, device, instanceId }
}

const until = (what: () => unknown): Promise<void> => expect.poll(what, { timeout: 10_000, interval: 20 }).toBeTruthy()

/** The cloud is asked first, which may be away too, within half a minute of the device's own time. */
const untilShown = ({ device }: Site, code: string): Promise<void> =>
  until(async () => {
    await device.pass(1_000)
    return device.conditions.includes(`push: ${code}`)
  })

const revisionOf = ({ device, instanceId }: Site): number =>
  device.activePolicies.get(instanceId)?.document.revision ?? 0

/** The device never hears of the change, and has it after one interval all the same. */
async function findsAChangeByItsTimer(site: Site): Promise<void> {
  const [before, { notifications }] = [revisionOf(site), site.device.link.status()]
  await site.twin.lineItem(site.instanceId, { quantity: 50 })
  site.twin.now += SYNC.interval
  await site.device.pass(SYNC.interval)
  await until(() => revisionOf(site) > before)
  expect(site.device.link.status().notifications).toEqual(notifications)
}

describe('a broker with TLS, users and rights', () => {
  const broker = guardedMosquitto('mosquitto with TLS', async () =>
    guard(await authority.certify(Date.now() + 86_400_000)),
  )

  test('carries change notifications from the twin to the device, and the word that it is there to the twin', async () => {
    const site = await openSite(broker.url)
    const { device, twin, instanceId } = site
    await until(() => device.link.status().push === 'CONNECTED')
    expect(device.conditions).toEqual([])
    await device.pass(2_000)
    const before = revisionOf(site)
    await twin.lineItem(instanceId, { quantity: 50 })
    await until(() => device.link.status().notifications > 0)
    await until(async () => {
      await device.pass(10)
      return revisionOf(site) > before
    })
    const deviceId = device.link.status().deviceId ?? ''
    await until(async () => {
      const { body } = await twin.call('GET', `/edge/api/v1/devices/${deviceId}`)
      return (body as { presence: { online: boolean } | null }).presence?.online === true
    })
  })

  test('a device with a wrong password reports it, and keeps polling', async () => {
    const site = await openSite(broker.url, { push: { password: 'wrong' } })
    await untilShown(site, 'BROKER_REFUSED')
    await findsAChangeByItsTimer(site)
  })

  test('a device that trusts another authority reports it, and keeps polling', async () => {
    await using other = await Authority.make()
    const site = await openSite(broker.url, { push: { extraCa: other.certificate } })
    await untilShown(site, 'BROKER_NOT_TRUSTED')
    await findsAChangeByItsTimer(site)
  })

  test('a twin that the broker refuses, or that trusts another authority, logs it once and serves', async () => {
    const wrong = await openSite(broker.url, { twinPassword: 'wrong' })
    await until(() => wrong.said.some(({ code }) => code === 'BROKER_REFUSED'))
    await findsAChangeByItsTimer(wrong)
    expect(wrong.said.filter(({ code }) => code === 'BROKER_REFUSED')).toHaveLength(1)
    const astray = await openSite(broker.url, { twinCa: null })
    await until(() => astray.said.some(({ code }) => code === 'BROKER_NOT_TRUSTED'))
    expect(astray.said.map(({ msg }) => msg).join()).not.toContain(users.twin)
  })
})

/** The twin starts again at its address with other settings, and the device may follow a change of the broker again. */
async function restartWith({ twin, device }: Site, push: Partial<Twin['settings']['push']>): Promise<void> {
  const port = Number(new URL(twin.cloud.address).port)
  await twin.stop()
  await twin.start((settings) => ({
    ...settings,
    http: { ...settings.http, port },
    push: { ...settings.push, ...push },
  }))
  twin.now += BROKER_CHANGE_GAP_MS
  device.time.advance(BROKER_CHANGE_GAP_MS)
  await device.sync()
}

describe('a twin that moves to another broker', () => {
  const certified = async (): Promise<BrokerGuard> => guard(await authority.certify(Date.now() + 86_400_000))
  const former = guardedMosquitto('mosquitto with TLS', certified)
  const next = guardedMosquitto('another mosquitto with TLS', certified)

  test('is followed by its devices with their next sync, also while it has none', async () => {
    const site = await openSite(former.url)
    const { device, twin, instanceId } = site
    await until(() => device.link.status().push === 'CONNECTED')
    await restartWith(site, { url: next.url })
    await until(() => device.link.status().push === 'CONNECTED')
    expect(device.conditions).toEqual([])
    await device.pass(2_000)
    const [before, { notifications }] = [revisionOf(site), device.link.status()]
    await twin.lineItem(instanceId, { quantity: 50 })
    await until(() => device.link.status().notifications > notifications)
    await until(async () => {
      await device.pass(10)
      return revisionOf(site) > before
    })
    await restartWith(site, { broker: 'off', url: null, username: null, password: null, caFile: null })
    expect(device.link.status().push).toBe('OFF')
    expect(device.conditions).toEqual([])
  })

  test('that does not respond is shown as a condition, and the device keeps polling', async () => {
    const site = await openSite(former.url)
    await until(() => site.device.link.status().push === 'CONNECTED')
    await restartWith(site, { url: 'mqtt://127.0.0.1:9', caFile: null })
    await untilShown(site, 'BROKER_UNREACHABLE')
    expect(site.device.link.status()).toMatchObject({ connected: true, push: 'DISCONNECTED' })
    await findsAChangeByItsTimer(site)
  })
})

describe('a broker whose certificate has expired', () => {
  const broker = guardedMosquitto('mosquitto with TLS', async () =>
    guard(await authority.certify(Date.now() - 3_600_000)),
  )

  test('is not trusted, and the device keeps polling', async () => {
    const site = await openSite(broker.url)
    await untilShown(site, 'BROKER_NOT_TRUSTED')
    const [condition] = site.device.link.status().conditions
    expect(condition?.message).toMatch(/expired/)
    await findsAChangeByItsTimer(site)
  })
})

test('a broker that is not there is out of reach, and the device keeps polling', async () => {
  const site = await openSite('mqtt://127.0.0.1:9')
  await untilShown(site, 'BROKER_UNREACHABLE')
  await findsAChangeByItsTimer(site)
})
