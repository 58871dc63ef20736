// Each operation that changes something leaves one row in the audit, in the transaction of the change.
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { servedOperations } from '../../../scripts/docs.ts'
import type { AuditRecord } from '../../../src/cloud/storage/audit-records.ts'
import { HOUR, type Twin, openTwin, pick, text } from '../harness.ts'
import type { CallerKind } from '../../../src/cloud/http/operation.ts'
import { REQUESTS, type World, openWorld, send } from './each-operation.ts'

/** Operations other than GET that leave no row. */
const UNRECORDED: Readonly<Record<string, string>> = {
  postaccessrequest: 'leaves usage records',
  putsessionaccessrequest: 'leaves usage records',
  attach: 'the epochs of a device are kept',
  sync: 'the segments of a device are kept',
  createConsoleCode: 'changes nothing; what the browser changes is recorded',
}

const KIND = {
  ADMINISTRATOR: 'ADMINISTRATOR',
  CLIENT: 'CLIENT',
  DEVICE: 'DEVICE',
  ENROLLMENT: 'DEVICE',
  INTRODUCED_DEVICE: 'DEVICE',
} as const satisfies Record<CallerKind, AuditRecord['by']['kind']>

const requests = servedOperations().flatMap((operation) =>
  operation.versions.flatMap((version) =>
    operation.principals.map((kind) => [operation.id, version, kind, operation] as const),
  ),
)

describe('records of sessions that clients open and close', () => {
  const open = async (twin: Twin, instance: string, count: number, token?: string): Promise<void> => {
    const call = { ...(token === undefined ? {} : { token }), headers: { 'x-instance-id': instance } }
    for (let opened = 0; opened < count; opened += 1) {
      await twin.call('POST', '/api/v1.1/sessions', { ...call, body: { instanceId: instance } })
    }
  }
  const byClient = (count: number) => Array.from({ length: count }, () => ['OPEN_SESSION', 'CLIENT'])
  const actions = async (twin: Twin, query = ''): Promise<readonly unknown[]> => {
    const { body } = await twin.call('GET', `/edge/api/v1/audit${query}`)
    return (pick(body, 'records') as { action: string; by: { kind: string } }[]).map(({ action, by }) => [
      action,
      by.kind,
    ])
  }

  it('hide no other record, and are deleted after a while, unlike those of administrators', async () => {
    await using twin = await openTwin((settings) => ({
      ...settings,
      audit: { ...settings.audit, sessionRetention: HOUR },
    }))
    const instance = await twin.instance()
    await open(twin, instance, 1)
    await open(twin, instance, 3, await twin.clientToken(instance))
    const kept = await actions(twin)
    expect(kept).toContainEqual(['OPEN_SESSION', 'ADMINISTRATOR'])
    expect(kept).not.toContainEqual(['OPEN_SESSION', 'CLIENT'])
    expect((await actions(twin, '?sessions=true')).slice(0, 3)).toEqual(byClient(3))
    expect(await actions(twin, '?action=OPEN_SESSION&by=client')).toEqual(byClient(3))
    await twin.advance(HOUR)
    expect(await actions(twin, '?sessions=true')).toHaveLength(kept.length + 3)
    await twin.advance(1)
    expect(await actions(twin, '?sessions=true')).toEqual(kept)
  })

  it('are kept only among the newest records, however fast a client is', async () => {
    const most = 5
    await using twin = await openTwin((settings) => ({ ...settings, audit: { ...settings.audit, sessionsMax: most } }))
    const instance = await twin.instance()
    const token = await twin.clientToken(instance)
    const kept = await actions(twin)
    await open(twin, instance, 2 * most, token)
    await twin.tick()
    expect(await actions(twin, '?sessions=true')).toEqual([...byClient(most), ...kept])
  })
})

describe('the audit', () => {
  let world: World
  beforeAll(async () => {
    world = await openWorld()
  })
  afterAll(() => world[Symbol.asyncDispose]())

  const rows = async (): Promise<readonly AuditRecord[]> => {
    return (await world.twin.read((reader) => reader.edge.audit.list({ traffic: true }, 100_000))).records
  }
  const tokenOf = (kind: CallerKind): Promise<string> => {
    const { twin, instance, device } = world
    if (kind === 'ADMINISTRATOR') return twin.administrationToken()
    return kind === 'CLIENT' ? twin.clientToken(instance) : device.token()
  }

  it.each(requests)('%s (%s) by %s', async (id, version, kind, operation) => {
    const isRecorded = operation.method !== 'GET' && UNRECORDED[id] === undefined
    const prepare = REQUESTS[id]
    if (prepare === undefined) throw new Error(`each-operation.ts has no request for ${id}`)
    const prepared = await prepare(world, version)
    const token = prepared.token ?? (await tokenOf(kind))
    const before = await rows()
    const reply = await send(world, operation, version, { ...prepared, token })
    expect(reply.status, reply.text).toBeLessThan(300)
    const added = (await rows()).slice(0, -before.length)
    if (!isRecorded) {
      expect(added).toEqual([])
      return
    }
    expect(added).toHaveLength(1)
    const [row] = added
    expect(row).toMatchObject({ by: { kind: KIND[kind] }, at: world.twin.wall })
    expect(row?.by.keyId).toMatch(/./)
    // Ids of the path are in the row.
    const named: Readonly<Record<string, string>> = {
      ...{ instanceId: world.instance, lineItemId: 'ACT-1', deviceId: world.device.id },
      ...prepared.params,
    }
    for (const name of ['instanceId', 'lineItemId', 'deviceId', 'sessionId'] as const) {
      if (operation.path.includes(`/:${name}`)) expect(row).toHaveProperty(name, named[name])
    }
    // No secrets: neither the token of the caller nor one in the response.
    const secrets = [token, (reply.body as { readonly token?: string } | undefined)?.token ?? token]
    for (const secret of secrets) expect(JSON.stringify(row)).not.toContain(secret)
  })

  it('records that a device which opens another session closes the one before', async () => {
    const { twin, instance, device } = world
    const open = async (opening: string): Promise<string> => {
      const headers = { 'x-instance-id': instance, 'idempotency-key': opening }
      const body = { instanceId: instance }
      const token = await device.token()
      return text((await twin.call('POST', '/api/v1.1/sessions', { token, headers, body })).body, 'sessionId')
    }
    const first = await open('first')
    const before = await rows()
    const second = await open('second')
    expect((await rows()).slice(0, -before.length)).toMatchObject([
      { action: 'OPEN_SESSION', sessionId: second, by: { kind: 'DEVICE' } },
      { action: 'CLOSE_SESSION', sessionId: first, by: { kind: 'DEVICE' }, deviceId: device.id, instanceId: instance },
    ])
  })

  it('names only operations that exist as unrecorded', () => {
    const ids = new Set(requests.map(([id]) => id))
    for (const id of Object.keys(UNRECORDED)) expect(ids).toContain(id)
  })
})
