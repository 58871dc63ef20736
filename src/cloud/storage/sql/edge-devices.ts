import type { Labels } from '../../../protocol/edge/labels.ts'
import type { PublicJwk } from '../../../protocol/signing.ts'
import { type SqlBool, sql as expression } from 'kysely'
import type {
  Device,
  DeviceClock,
  DeviceFilter,
  DeviceKey,
  DeviceKeyRecord,
  DevicePart,
  KnownDeviceKey,
  EnrollmentRecord,
  Suspension,
} from '../device-records.ts'
import { countByContact, isByContact, matchingDevices } from './device-filter.ts'
import {
  type Sql,
  changedOf,
  chunks,
  countOf,
  prepared,
  preparedUpdate,
  rowsOf,
  toBigint,
  toFlag,
  toNumber,
  updates,
} from './sql.ts'
import type { Row } from './tables.ts'

export function deviceReader(sql: Sql) {
  const { db, fleet } = sql
  return {
    async get(id: string): Promise<Device | undefined> {
      const [row] = (await db.executeQuery(deviceWithId(db, [id]))).rows
      return row === undefined ? undefined : deviceOf(row)
    },
    async withKey(thumbprint: string): Promise<KnownDeviceKey | undefined> {
      return (await withKeys(db, [thumbprint])).get(thumbprint)
    },
    /** By thumbprint. */
    withKeys: (thumbprints: readonly string[]): Promise<ReadonlyMap<string, KnownDeviceKey>> =>
      withKeys(db, thumbprints),
    /** Newest first. */
    async keysOf(device: Device, limit: number): Promise<readonly DeviceKeyRecord[]> {
      const rows = await db
        .selectFrom('device_keys')
        .select(['thumbprint', 'registered_at'])
        .where('device_id', '=', device.id)
        .orderBy('registered_at', 'desc')
        .limit(limit)
        .execute()
      return rows.map(({ thumbprint, registered_at }) => ({
        thumbprint,
        state: stateOf(device, thumbprint),
        registeredAt: Number(registered_at),
      }))
    },
    keysBetween(deviceId: string, since: number, until: number): Promise<number> {
      const keys = db.selectFrom('device_keys').where('device_id', '=', deviceId)
      return countOf(keys.where('registered_at', '>', BigInt(since)).where('registered_at', '<=', BigInt(until)))
    },
    /** Overdue and current ones by their last contact, longest ago first; others in order of enrollment. */
    async find(filter: DeviceFilter, offset: number, limit: number): Promise<readonly Device[]> {
      const { query, inOrder } = await matchingDevices(db, filter)
      const all = query.selectAll('devices')
      const ordered = isByContact(filter.contact) ? all.orderBy('last_sync_at').orderBy(inOrder) : all.orderBy(inOrder)
      const rows = await ordered.offset(offset).limit(limit).execute()
      return rows.map(deviceOf)
    },
    /** In order of enrollment. @param after number of the last device of the part before; 0n: from the first */
    async part(filter: DeviceFilter, after: bigint, limit: number): Promise<DevicePart> {
      const { query, inOrder } = await matchingDevices(db, filter)
      const rest = query.selectAll('devices').where(inOrder, '>', after)
      const rows = await rest.orderBy(inOrder).limit(limit).execute()
      return { devices: rows.map(deviceOf), last: rows.length < limit ? null : (rows.at(-1)?.seq ?? null) }
    },
    /** @param most counted of each; this number means "so many or more" */
    countByContact: (filter: Omit<DeviceFilter, 'contact'>, overdueBefore: number, most: number) =>
      countByContact(db, filter, { overdueBefore, most }),
    countTrusted(instanceId: string): Promise<number> {
      return countOf(
        db
          .selectFrom('device_instances')
          .innerJoin('devices', 'devices.id', 'device_instances.device_id')
          .where('device_instances.instance_id', '=', instanceId)
          .where('devices.revoked_at', 'is', null),
      )
    },
    /**
     * Devices, other than `except`, that are not revoked and have synced since then.
     * @param except id of a device of this instance, or ''
     */
    async countLive(instanceId: string, since: number, except: string): Promise<number> {
      const own = except === '' ? 0 : 1
      const known = fleet.live.get(instanceId, since)
      if (known !== undefined) return known.value - own
      const [row] = (await db.executeQuery(liveDevices(db, [instanceId, except, BigInt(since)]))).rows
      const devices = Number(row?.count ?? 0n) + own
      fleet.live.set(instanceId, { value: devices, devices, at: since })
      return devices - own
    },
  }
}

const deviceWithId = prepared((db) => db.selectFrom('devices').selectAll().where('id', '=', ''))

const lockedDevice = prepared((db) => db.selectFrom('devices').selectAll().where('id', '=', '').forNoKeyUpdate())

const someDevices = (db: Sql['db'], count: number) =>
  db.selectFrom('devices').selectAll().where('id', 'in', Array<string>(count).fill(''))

const devicesWithIds = prepared(someDevices)

const lockedDevices = prepared((db, count) => someDevices(db, count).orderBy('id').forNoKeyUpdate().skipLocked())

const isLive = (since: bigint) => expression<SqlBool>`(
  SELECT revoked_at IS NULL AND last_sync_at >= ${since} FROM devices WHERE id = device_instances.device_id
)`

// Looks up each device of the instance: joined, PostgreSQL reads all devices of the fleet when it expects that few have synced.
const liveDevices = prepared((db) =>
  db
    .selectFrom('device_instances')
    .select(({ fn }) => fn.countAll<bigint>().as('count'))
    .where('instance_id', '=', '')
    .where('device_id', '!=', '')
    .where(isLive(0n)),
)

const devicesWithKeys = prepared((db, count) =>
  db
    .selectFrom('device_keys')
    .innerJoin('devices', 'devices.id', 'device_keys.device_id')
    .selectAll('devices')
    .select(['device_keys.thumbprint as used_thumbprint', 'device_keys.public_key as used_key'])
    .where('device_keys.thumbprint', 'in', Array<string>(count).fill('')),
)

async function withKeys(db: Sql['db'], thumbprints: readonly string[]): Promise<ReadonlyMap<string, KnownDeviceKey>> {
  const found = new Map<string, KnownDeviceKey>()
  for (const row of await rowsOf(db, devicesWithKeys, thumbprints)) {
    const device = deviceOf(row)
    const thumbprint = row.used_thumbprint
    found.set(thumbprint, {
      device,
      thumbprint,
      publicKey: thumbprint === device.thumbprint ? device.publicKey : (JSON.parse(row.used_key) as PublicJwk),
      state: stateOf(device, thumbprint),
    })
  }
  return found
}

const updatedDevice = preparedUpdate((db, columns) => db.updateTable('devices').set(columns).where('id', '=', ''))

const updatedDevices = updates('devices', ['id'])

export function deviceTransaction(sql: Sql) {
  const { db, lockRows, fleet } = sql
  const countLive = (device: Device, stored: Device): void => {
    for (const id of device.instanceIds) {
      fleet.live.change(
        id,
        ({ value, at }) => value + Number(isLiveSince(device, at)) - Number(isLiveSince(stored, at)),
      )
    }
  }
  const serve = async ({ id, instanceIds }: Device): Promise<void> => {
    await db.deleteFrom('device_instances').where('device_id', '=', id).execute()
    const rows = instanceIds.map((instance_id) => ({ instance_id, device_id: id }))
    for (const some of chunks(rows, 100)) await db.insertInto('device_instances').values(some).execute()
  }
  const label = async (id: string, labels: Labels): Promise<void> => {
    const saved = db
      .updateTable('devices')
      .set({ labels: JSON.stringify(labels) })
      .where('id', '=', id)
    const { seq: device_seq } = await saved.returning('seq').executeTakeFirstOrThrow()
    await db.deleteFrom('device_labels').where('device_seq', '=', device_seq).execute()
    const rows = Object.entries(labels).map(([key, value]) => ({ key, value, device_seq }))
    if (rows.length > 0) await db.insertInto('device_labels').values(rows).execute()
  }
  const registerKey = async (deviceId: string, { thumbprint, publicKey }: DeviceKey, at: number): Promise<boolean> => {
    const inserted = await db
      .insertInto('device_keys')
      .values({
        thumbprint,
        device_id: deviceId,
        public_key: JSON.stringify(publicKey),
        registered_at: BigInt(at),
      })
      .onConflict((conflict) => conflict.column('thumbprint').doNothing())
      .returning('thumbprint')
      .executeTakeFirst()
    return inserted !== undefined
  }
  return {
    ...deviceReader(sql),
    async lock(id: string): Promise<Device | undefined> {
      const [row] = (await db.executeQuery((lockRows ? lockedDevice : deviceWithId)(db, [id]))).rows
      return row === undefined ? undefined : deviceOf(row)
    },
    /** Locks those that exist and that no other transaction has locked: it waits for none. */
    async lockSome(ids: readonly string[]): Promise<ReadonlyMap<string, Device>> {
      const rows = await rowsOf(db, lockRows ? lockedDevices : devicesWithIds, ids.toSorted())
      return new Map(rows.map((row) => [row.id, deviceOf(row)]))
    },
    async insert(device: Device): Promise<void> {
      const enrolled = { id: device.id, enrolled_at: BigInt(device.enrolledAt) }
      await db
        .insertInto('devices')
        .values({ ...enrolled, ...columnsOf(device) })
        .execute()
      const { id, publicKey, thumbprint, enrolledAt } = device
      const isFree = await registerKey(id, { publicKey, thumbprint }, enrolledAt)
      if (!isFree) throw new Error('invariant: a key is of one device')
      await serve(device)
      await label(id, device.labels)
    },
    /** Replaces its labels. */
    label,
    /** Assigns the key to the device forever; false: already registered, by any device. */
    registerKey,
    /**
     * Saves all but id, enrollment time and labels. Its keys must be registered.
     * @param stored as it was read in this transaction: then only what differs is written
     */
    async save(device: Device, stored?: Device): Promise<void> {
      const columns = columnsOf(device)
      const changed = stored === undefined ? columns : changedOf(columnsOf(stored), columns)
      if (Object.keys(changed).length === 0) return
      await db.executeQuery(updatedDevice(db, changed, [device.id]))
      if (changed.instance_ids !== undefined) await serve(device)
      if (stored !== undefined) countLive(device, stored)
    },
    /** As `save`, of devices that serve the same instances as before. */
    async saveSome(changes: readonly { readonly device: Device; readonly stored: Device }[]): Promise<void> {
      const rows = changes.map(({ device, stored }) => ({
        key: [device.id],
        before: columnsOf(stored),
        after: columnsOf(device),
      }))
      await updatedDevices(db, rows)
      for (const { device, stored } of changes) countLive(device, stored)
    },
  }
}

export function enrollmentReader({ db }: Sql) {
  return {
    async get(jti: string): Promise<EnrollmentRecord | undefined> {
      const row = await db.selectFrom('enrollments').selectAll().where('jti', '=', jti).executeTakeFirst()
      return row === undefined
        ? undefined
        : { jti: row.jti, thumbprint: row.thumbprint, deviceId: row.device_id, at: Number(row.at) }
    },
  }
}

export function enrollmentTransaction(sql: Sql) {
  return {
    ...enrollmentReader(sql),
    async claim({ jti, thumbprint, deviceId, at }: EnrollmentRecord): Promise<boolean> {
      const inserted = await sql.db
        .insertInto('enrollments')
        .values({ jti, thumbprint, device_id: deviceId, at: BigInt(at) })
        .onConflict((conflict) => conflict.column('jti').doNothing())
        .returning('jti')
        .executeTakeFirst()
      return inserted !== undefined
    },
  }
}

function isLiveSince({ revokedAt, lastSyncAt }: Device, since: number): boolean {
  return revokedAt === null && lastSyncAt !== null && lastSyncAt >= since
}

function columnsOf(device: Device) {
  return {
    name: device.name,
    public_key: JSON.stringify(device.publicKey),
    thumbprint: device.thumbprint,
    key_since: BigInt(device.keySince),
    next_public_key: device.nextKey === null ? null : JSON.stringify(device.nextKey.publicKey),
    next_thumbprint: device.nextKey?.thumbprint ?? null,
    replace_key: device.replaceKey,
    revoked_at: toBigint(device.revokedAt),
    revoked_by: device.revokedBy,
    suspension_state: device.suspension?.state ?? null,
    suspended_since: toBigint(device.suspension?.since ?? null),
    suspended_by: device.suspension?.by ?? null,
    last_sync_at: toBigint(device.lastSyncAt),
    software: device.software,
    epoch: BigInt(device.epoch),
    backlog: BigInt(device.backlog),
    applied_policies: JSON.stringify(device.appliedPolicies),
    release_requested: toFlag(device.releaseRequested),
    clock: device.clock === null ? null : JSON.stringify(device.clock),
    instance_ids: JSON.stringify(device.instanceIds.toSorted()),
  }
}

function deviceOf(row: Row<'devices'>): Device {
  return {
    id: row.id,
    name: row.name,
    publicKey: JSON.parse(row.public_key) as PublicJwk,
    thumbprint: row.thumbprint,
    keySince: Number(row.key_since),
    nextKey: nextKeyOf(row),
    replaceKey: row.replace_key,
    instanceIds: JSON.parse(row.instance_ids) as readonly string[],
    enrolledAt: Number(row.enrolled_at),
    revokedAt: toNumber(row.revoked_at),
    revokedBy: row.revoked_by,
    suspension: suspensionOf(row),
    lastSyncAt: toNumber(row.last_sync_at),
    software: row.software,
    epoch: Number(row.epoch),
    backlog: Number(row.backlog),
    appliedPolicies: JSON.parse(row.applied_policies) as Device['appliedPolicies'],
    releaseRequested: row.release_requested === 1n,
    clock: row.clock === null ? null : (JSON.parse(row.clock) as DeviceClock),
    labels: JSON.parse(row.labels) as Labels,
  }
}

function nextKeyOf({ next_public_key, next_thumbprint }: Row<'devices'>): DeviceKey | null {
  if (next_public_key === null || next_thumbprint === null) return null
  return { publicKey: JSON.parse(next_public_key) as PublicJwk, thumbprint: next_thumbprint }
}

function stateOf(device: Device, thumbprint: string): KnownDeviceKey['state'] {
  if (device.thumbprint === thumbprint) return 'CURRENT'
  return device.nextKey?.thumbprint === thumbprint ? 'NEXT' : 'PAST'
}

function suspensionOf({ suspension_state, suspended_since, suspended_by }: Row<'devices'>): Suspension | null {
  if (suspension_state === null || suspended_since === null || suspended_by === null) return null
  return { state: suspension_state, since: Number(suspended_since), by: suspended_by }
}
