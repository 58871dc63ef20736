// Events of a whole cloud, and the commands that administer them.
import { readFileSync, writeFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { loadSettings } from '../../../src/settings/load.ts'
import { cloudOptions } from '../../../src/cloud/settings.ts'
import { tallygate } from '../../cli/outside.ts'
import { type ReceivedEvent, WebhookReceiver } from '../../support/webhook-receiver.ts'
import { EdgeClient } from '../devices/edge-client.ts'
import { ALWAYS, DAY, MINUTE, type SettingsChange, type Twin, openTwin } from '../harness.ts'

describe('events of a cloud', () => {
  let receiver: WebhookReceiver
  let folder: string
  let twin: Twin
  const withSink: SettingsChange = (settings) => {
    const sink = { name: 'billing', url: receiver.url, secret_file: join(folder, 'secret') }
    return { ...settings, events: { ...settings.events, webhooks: [sink] } }
  }
  beforeEach(async () => {
    receiver = await WebhookReceiver.start()
    folder = await mkdtemp(join(tmpdir(), 'tallygate-events-'))
    writeFileSync(join(folder, 'secret'), `${receiver.secret}\n`)
    twin = await openTwin(withSink)
    await twin.tick()
  })
  afterEach(async () => {
    await twin[Symbol.asyncDispose]()
    await receiver[Symbol.asyncDispose]()
    await rm(folder, { recursive: true, force: true })
  })

  const world = { now: () => twin.now, readText: (path: string) => readFileSync(path, 'utf8') }
  const run = (...args: readonly string[]) =>
    tallygate([...args, '--url', twin.cloud.address, '--admin-key', twin.cloud.administrationKeyFile], world)
  const typesOf = (events: readonly ReceivedEvent[]) => events.map(({ type }) => type.replace('tallygate.', ''))
  const command = (device: EdgeClient, name: string) => twin.call('POST', `/edge/api/v1/devices/${device.id}/${name}`)

  it('are signed with another secret after a restart, as a reload of the settings says', async () => {
    const lines: string[] = []
    await using other = await openTwin(withSink, pino({}, { write: (line: string) => void lines.push(line) }))
    writeFileSync(join(folder, 'secret'), `${receiver.secret}\nwhsec_${'A'.repeat(43)}=\n`)
    other.cloud.reload(() => other.settings)
    expect(lines.at(-1)).toContain('"needRestart":["events.webhooks"]')
  })

  it('arrive signed, in the order of the changes', async () => {
    const instance = await twin.shop({ ...ALWAYS, quantity: 10 })
    const device = await EdgeClient.join(twin, instance)
    await twin.access(instance, { Print: 8 })
    await twin.access(instance, { Print: 2 })
    for (const name of ['lock', 'lock', 'unlock', 'terminate', 'revoke', 'revoke']) {
      await command(device, name)
      twin.now += 1
    }
    await twin.tick()
    expect(receiver.deliveries.every(({ signed }) => signed)).toBe(true)
    expect(typesOf(receiver.events)).toEqual([
      'device.enrolled',
      'line-item.low',
      'usage',
      'line-item.exhausted',
      'usage',
      'device.locked',
      'device.unlocked',
      'device.terminated',
      'device.revoked',
    ])
    expect(receiver.events[1]).toMatchObject({
      specversion: '1.0',
      source: 'urn:tallygate:tallygate',
      subject: instance,
      partitionkey: instance,
      data: { instanceId: instance, lineItemId: 'ACT-1', period: 0, capacity: '10', used: '8', left: '2' },
    })
    expect(receiver.events[2]?.data).toMatchObject({ tokens: 8, item: 'Print', status: 'GRANTED' })
    const metrics = await (await fetch(twin.cloud.metricsAddress)).text()
    expect(metrics).toContain('tallygate_events_total{sink="billing",outcome="delivered"} 9')
  })

  it('are counted from zero, so that the first rejected one is an increase', async () => {
    const metrics = await (await fetch(twin.cloud.metricsAddress)).text()
    expect(metrics).toContain('tallygate_events_total{sink="billing",outcome="rejected"} 0')
    expect(metrics).toContain('tallygate_event_sink_failing{sink="billing"} 0')
  })

  it('wait for a receiver that is out, over a restart, and are never refused to clients', async () => {
    const instance = await twin.shop(ALWAYS)
    receiver.respond = () => 503
    expect((await twin.access(instance, { Print: 1 })).status).toBe(200)
    await twin.tick()
    await twin.access(instance, { Print: 2 })
    await twin.restart()
    await twin.tick()
    const shown = await run('events', 'sinks')
    expect(shown.out).toMatch(/^SINK +KIND +STATE +NEXT ATTEMPT +LAST PROGRESS +DEAD LETTERS/)
    expect(shown.out).toMatch(/billing +webhook +failing since .* responded with 503/)
    const attempts = receiver.deliveries.length
    receiver.respond = () => 200
    await twin.advance(5 * MINUTE)
    const sent = receiver.deliveries.slice(attempts).flatMap(({ events }) => events)
    expect(sent.map(({ data }) => data['tokens'])).toEqual([1, 2])
    expect((await run('events', 'sinks')).out).toMatch(/billing +webhook +up to date/)
    expect(twin.wrongAnswers).toEqual([])
  })

  it('are inspected, replayed and discarded by commands, which the audit records', async () => {
    const instance = await twin.shop(ALWAYS)
    const device = await EdgeClient.join(twin, instance)
    receiver.respond = ({ events }) => (events.some(({ type }) => type === 'tallygate.usage') ? 410 : 200)
    await twin.access(instance, { Print: 3 })
    await twin.tick()
    for (let attempt = 0; attempt < 3; attempt += 1) await twin.advance(5 * MINUTE)

    const [head, row] = (await run('events', 'list', '--device', device.id)).out.split('\n')
    expect(head).toMatch(/^AT +TYPE +SUBJECT +ID$/)
    expect(row).toContain(`tallygate.device.enrolled  ${device.id}`)
    const letters = (await run('events', 'dead-letters', 'billing', '--json')).out.trim().split('\n')
    const letter = JSON.parse(letters[0] ?? '') as { eventId: string; problem: string }
    expect(letters).toHaveLength(1)
    expect(letter.problem).toContain('responded with 410')
    const event = JSON.parse((await run('events', 'show', letter.eventId)).out) as ReceivedEvent
    expect(event).toMatchObject({ type: 'tallygate.usage', data: { tokens: 3, instanceId: instance } })

    receiver.respond = () => 200
    expect(await run('events', 'replay', 'billing', '--dead-letters')).toMatchObject({ code: 0, err: '' })
    const before = receiver.events.length
    await twin.tick()
    expect(receiver.events.slice(before)).toEqual([event])
    expect((await run('events', 'dead-letters', 'billing')).out).toBe('No dead letters.\n')
    expect((await run('events', 'list', '--type', 'device.forked')).out).toBe('No events.\n')

    await run('events', 'replay', 'billing', '--after', '0')
    await twin.tick()
    expect(typesOf(receiver.events.slice(before + 1))).toEqual(['device.enrolled', 'usage'])
    expect((await run('events', 'replay', 'billing')).err).toContain('Give either --after or --dead-letters')
    expect((await run('events', 'replay', 'other', '--dead-letters')).err).toContain('NOT_FOUND')
    expect((await run('events', 'show', `usage/none/${2n ** 40n}`)).err).toContain('NOT_FOUND')
    receiver.respond = () => 503
    await twin.access(instance, { Print: 1 })
    await twin.tick()
    await twin.tick()
    expect((await run('events', 'sinks')).out).toMatch(/failing since (\S+) +\d{4}-\S+Z +\d{4}-/)
    receiver.respond = () => 200
    expect((await run('events', 'retry', 'billing')).out).toMatch(/failing since (\S+) +now +/)
    await twin.tick()
    expect((await run('events', 'sinks')).out).toMatch(/up to date +- +/)
    for (const command of ['discard', 'forget']) {
      const { code, err } = await run('events', command, 'billing')
      expect([code, err]).toEqual([64, expect.stringContaining(`Repeat with --yes to run ${command}.`) as string])
    }
    expect(await run('events', 'discard', 'billing', '--yes')).toMatchObject({ code: 0 })
    expect((await run('events', 'forget', 'billing', '--yes')).out).toContain('is forgotten')
    expect((await run('events', 'sinks')).out).toMatch(/^No sinks: /)
    const audit = (await run('audit', 'list', '--limit', '5')).out
    expect(audit).toMatch(/forget event sink[^]*discard dead letters[^]*retry event sink[^]*replay events/)
    for (const { out } of [await run('events', 'sinks', '--json'), { out: audit }]) {
      expect(out).not.toContain(receiver.secret.slice(6))
    }
  })

  it('are deleted after 90 days, once the receiver has them', async () => {
    const instance = await twin.shop(ALWAYS)
    const device = await EdgeClient.join(twin, instance)
    receiver.respond = () => 503
    for (const name of ['lock', 'unlock']) await command(device, name)
    const listed = async () => (await run('events', 'list', '--device', device.id)).out.trim().split('\n').slice(1)
    await twin.advance(91 * DAY)
    expect(await listed()).toHaveLength(3)
    receiver.respond = () => 200
    await twin.advance(5 * MINUTE)
    await twin.advance(5 * MINUTE)
    expect(typesOf(receiver.events)).toContain('device.unlocked')
    expect(await listed()).toEqual([expect.stringContaining('device.unlocked')])
  })

  it('end with the cloud at once, although a receiver does not respond', async () => {
    const instance = await twin.shop(ALWAYS)
    const arrived = Promise.withResolvers<undefined>()
    receiver.respond = () => {
      arrived.resolve(undefined)
      return 'HANG'
    }
    await twin.access(instance, { Print: 1 })
    const tick = twin.tick()
    await arrived.promise
    await twin.stop()
    await tick
    receiver.respond = () => 200
    await twin.start()
    await twin.tick()
    expect(receiver.ids.length).toBe(2)
    expect(new Set(receiver.ids).size).toBe(1)
  })
})

describe('settings of webhooks', () => {
  const load = (webhooks: unknown) =>
    loadSettings(cloudOptions, {
      file: null,
      env: { TALLYGATE_CLOUD_EVENTS_WEBHOOKS: JSON.stringify(webhooks) },
      flags: {},
      readText: () => '',
    })
  const webhook = { name: 'billing', url: 'https://billing.example/events', secret_file: '/etc/secret' }

  it('take names, addresses and files', () => {
    expect(load([{ ...webhook, types: ['usage'] }]).events.webhooks).toEqual([{ ...webhook, types: ['usage'] }])
  })

  it.each([
    ['a password in the address', [{ ...webhook, url: 'https://ada:secret@billing.example' }]],
    ['another protocol', [{ ...webhook, url: 'file:///etc/passwd' }]],
    ['a name twice', [webhook, webhook]],
    ['the name of the NATS sink', [{ ...webhook, name: 'nats' }]],
    ['an unknown type', [{ ...webhook, types: ['all'] }]],
    ['a secret in place of its file', [{ ...webhook, secret: 'whsec_' }]],
  ])('do not take %s', (_, webhooks) => {
    expect(() => load(webhooks)).toThrow(/events\.webhooks|EVENTS_WEBHOOKS/)
  })
})
