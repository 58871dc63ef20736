// Each operation that changes something leaves one row in the audit, in the transaction of the change.
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { servedOperations } from '../../../scripts/docs.ts'
import type { AuditRecord } from '../../../src/cloud/storage/audit-records.ts'
import type { CallerKind } from '../../../src/cloud/http/operation.ts'
import { REQUESTS, type World, openWorld, send } from './each-operation.ts'

/** Operations other than GET that leave no row. */
const UNRECORDED: Readonly<Record<string, string>> = {
  postaccessrequest: 'leaves usage records',
  putsessionaccessrequest: 'leaves usage records',
  attach: 'the epochs of a device are kept',
  sync: 'the segments of a device are kept',
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

describe('the audit', () => {
  let world: World
  beforeAll(async () => {
    world = await openWorld()
  })
  afterAll(() => world[Symbol.asyncDispose]())

  const rows = async (): Promise<readonly AuditRecord[]> => {
    const filter = { deviceId: null, instanceId: null, before: null }
    return (await world.twin.read((reader) => reader.edge.audit.list(filter, 100_000))).records
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

  it('names only operations that exist as unrecorded', () => {
    const ids = new Set(requests.map(([id]) => id))
    for (const id of Object.keys(UNRECORDED)) expect(ids).toContain(id)
  })
})
