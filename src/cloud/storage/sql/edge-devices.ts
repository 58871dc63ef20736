import type { Label, Labels } from '../../../protocol/edge/labels.ts'
import type { PublicJwk } from '../../../protocol/signing.ts'
import { type RawBuilder, type SqlBool, sql as expression } from 'kysely'
import {
  CONTACTS,
  type Contact,
  type Device,
  type DeviceClock,
  type DeviceFilter,
  type DeviceKey,
  type DeviceKeyRecord,
  type DevicePart,
  type KnownDeviceKey,
  type EnrollmentRecord,
  type Suspension,
} from '../device-records.ts'
import {
  type Sql,
  changedOf,
  chunks,
  filledUp,
  prepared,
  preparedUpdate,
  toBigint,
  toFlag,
  toNumber,
  updates,
} from './sql.ts'
import type { Row } from './tables.ts'

/** As literals, like in the partial indexes. */
const IS_SERVED = expression<SqlBool>`revoked_at IS NULL AND suspension_state IS NULL`

const IN_CONTACT: Readonly<Record<Contact, (overdueBefore: number) => RawBuilder<SqlBool>>> = {
  CURRENT: (before) => expression`${IS_SERVED} AND last_sync_at >= ${BigInt(before)}`,
  OVERDUE: (before) => expression`${IS_SERVED} AND last_sync_at < ${BigInt(before)}`,
  NEVER: () => expression`${IS_SERVED} AND last_sync_at IS NULL`,
  SUSPENDED: () => expression`suspension_state IS NOT NULL AND revoked_at IS NULL`,
  REVOKED: () => expression`revoked_at IS NOT NULL`,
}

/** Devices that a search looks at, by id and by name each. */
const FOUND_MAX = 1_000

/** Sorts after every text that begins with a prefix. */
const AFTER_ALL = '\u{10ffff}'

/** An instance or a label selects few devices: they are collected and sorted. More are tested one by one, in order. */
const FEW_MAX = 1_000

/** The devices of an instance, or with a label. */
interface DeviceGroup {
  readonly members: RawBuilder<unknown>
  readonly isListed: RawBuilder<SqlBool>
  readonly isMember: RawBuilder<SqlBool>
}

function groupOfInstance(id: string): DeviceGroup {
  const members = expression`SELECT device_id FROM device_instances AS grouped WHERE grouped.instance_id = ${id}`
  return {
    members,
    isListed: expression<SqlBool>`devices.id IN (${members})`,
    isMember: expression<SqlBool>`EXISTS (${members} AND grouped.device_id = devices.id)`,
  }
}

function groupWithLabel({ key, value }: Label): DeviceGroup {
  const members = expression`SELECT device_seq FROM device_labels AS grouped WHERE grouped.key = ${key} AND grouped.value = ${value}`
  return {
    members,
    isListed: expression<SqlBool>`devices.seq IN (${members})`,
    isMember: expression<SqlBool>`EXISTS (${members} AND grouped.device_seq = devices.seq)`,
  }
}

function groupsOf({ instanceId, labels = [] }: DeviceFilter): readonly DeviceGroup[] {
  return [...(instanceId === undefined ? [] : [groupOfInstance(instanceId)]), ...labels.map(groupWithLabel)]
}

interface Grouped {
  readonly groups: readonly DeviceGroup[]
  /** The first one with few members. */
  readonly few: DeviceGroup | undefined
  readonly isEmpty: boolean
}

function servesOnly(scope: ReadonlySet<string>): RawBuilder<SqlBool> {
  const served = expression`SELECT 1 FROM device_instances AS served WHERE served.device_id = devices.id`
  const others =
    scope.size === 0 ? expression`` : expression` AND served.instance_id NOT IN (${expression.join([...scope])})`
  return expression<SqlBool>`NOT EXISTS (${served}${others})`
}

export function deviceReader(sql: Sql) {
  const { db, fleet } = sql
  const sizeOf = async ({ members }: DeviceGroup): Promise<number> => {
    const counted = expression<{
      count: bigint
    }>`SELECT count(*) AS count FROM (${members} LIMIT ${FEW_MAX + 1}) AS counted`
    const { rows } = await counted.execute(db)
    return Number(rows[0]?.count ?? 0n)
  }
  const grouped = async (filter: DeviceFilter): Promise<Grouped> => {
    const groups = groupsOf(filter)
    for (const few of groups) {
      const size = await sizeOf(few)
      if (size <= FEW_MAX) return { groups, few, isEmpty: size === 0 }
    }
    return { groups, few: undefined, isEmpty: false }
  }
  /** With the expression that sorts in order of enrollment. */
  const matching = ({ contact, search, labels = [], scope = null }: DeviceFilter, { groups, few }: Grouped) => {
    let query = db.selectFrom('devices')
    let inOrder = 'devices.seq'
    const [label] = labels
    if (few === undefined && label !== undefined && !isByContact(contact)) {
      const walked = query
        .innerJoin('device_labels as walked', 'walked.device_seq', 'devices.seq')
        .where('walked.key', '=', label.key)
        .where('walked.value', '=', label.value)
      query = walked
      inOrder = 'walked.device_seq'
    }
    for (const group of groups) query = query.where(group === few ? group.isListed : group.isMember)
    if (scope !== null) query = query.where(servesOnly(scope))
    if (contact !== undefined) query = query.where(IN_CONTACT[contact.state](contact.overdueBefore))
    if (search !== undefined) {
      const starting = (column: 'id' | 'name') => {
        const some = db.selectFrom('devices').select('seq').where(column, '>=', search)
        const first = some
          .where(column, '<', search + AFTER_ALL)
          .orderBy(column)
          .limit(FOUND_MAX)
        return db.selectFrom(first.as('first')).select('seq')
      }
      // Each half uses the index of its column; OR would not.
      query = query.where('devices.seq', 'in', starting('id').union(starting('name')))
    }
    return { query, inOrder: expression.ref(inOrder) }
  }
  const within = async (filter: DeviceFilter) => matching(filter, await grouped(filter))
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
    async keysBetween(deviceId: string, since: number, until: number): Promise<number> {
      const { count } = await db
        .selectFrom('device_keys')
        .select(({ fn }) => fn.countAll<bigint>().as('count'))
        .where('device_id', '=', deviceId)
        .where('registered_at', '>', BigInt(since))
        .where('registered_at', '<=', BigInt(until))
        .executeTakeFirstOrThrow()
      return Number(count)
    },
    /** Overdue and current ones by their last contact, longest ago first; others in order of enrollment. */
    async find(filter: DeviceFilter, offset: number, limit: number): Promise<readonly Device[]> {
      const { query, inOrder } = await within(filter)
      const all = query.selectAll('devices')
      const ordered = isByContact(filter.contact) ? all.orderBy('last_sync_at').orderBy(inOrder) : all.orderBy(inOrder)
      const rows = await ordered.offset(offset).limit(limit).execute()
      const devices: Device[] = []
      for (const row of rows) devices.push(deviceOf(row))
      return devices
    },
    /** In order of enrollment. @param after number of the last device of the part before; 0n: from the first */
    async part(filter: DeviceFilter, after: bigint, limit: number): Promise<DevicePart> {
      const { query, inOrder } = await within(filter)
      const rest = query.selectAll('devices').where(inOrder, '>', after)
      const rows = await rest.orderBy(inOrder).limit(limit).execute()
      const devices: Device[] = []
      for (const row of rows) devices.push(deviceOf(row))
      return { devices, last: rows.length < limit ? null : (rows.at(-1)?.seq ?? null) }
    },
    /** @param most counted of each; this number means "so many or more" */
    async countByContact(
      filter: Omit<DeviceFilter, 'contact'>,
      overdueBefore: number,
      most: number,
    ): Promise<ReadonlyMap<Contact, number>> {
      const group = await grouped(filter)
      const counts = new Map(CONTACTS.map((state) => [state, 0]))
      // One by one: a single statement would keep requests waiting on SQLite.
      for (const state of group.isEmpty ? [] : CONTACTS) {
        const { query } = matching({ ...filter, contact: { state, overdueBefore } }, group)
        const { count } = await db
          .selectFrom(query.select('devices.seq').limit(most).as('some'))
          .select(({ fn }) => fn.countAll<bigint>().as('count'))
          .executeTakeFirstOrThrow()
        counts.set(state, Number(count))
      }
      return counts
    },
    async countTrusted(instanceId: string): Promise<number> {
      const { count } = await db
        .selectFrom('device_instances')
        .innerJoin('devices', 'devices.id', 'device_instances.device_id')
        .select(({ fn }) => fn.countAll<bigint>().as('count'))
        .where('device_instances.instance_id', '=', instanceId)
        .where('devices.revoked_at', 'is', null)
        .executeTakeFirstOrThrow()
      return Number(count)
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
  for (const some of chunks(thumbprints)) {
    const listed = filledUp(some)
    for (const row of (await db.executeQuery(devicesWithKeys(db, listed, listed.length))).rows) {
      const device = deviceOf(row)
      const thumbprint = row.used_thumbprint
      found.set(thumbprint, {
        device,
        thumbprint,
        publicKey: thumbprint === device.thumbprint ? device.publicKey : (JSON.parse(row.used_key) as PublicJwk),
        state: stateOf(device, thumbprint),
      })
    }
  }
  return found
}

const updatedDevice = preparedUpdate((db, columns) => db.updateTable('devices').set(columns).where('id', '=', ''))

const updatedDevices = updates('devices', ['id'])

export function deviceTransaction(sql: Sql) {
  const { db, lockRows } = sql
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
      const found = new Map<string, Device>()
      for (const some of chunks(ids.toSorted())) {
        const listed = filledUp(some)
        const query = (lockRows ? lockedDevices : devicesWithIds)(db, listed, listed.length)
        for (const row of (await db.executeQuery(query)).rows) found.set(row.id, deviceOf(row))
      }
      return found
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
    },
    /** As `save`, of devices that serve the same instances as before. */
    async saveSome(changes: readonly { readonly device: Device; readonly stored: Device }[]): Promise<void> {
      const rows = changes.map(({ device, stored }) => ({
        key: [device.id],
        before: columnsOf(stored),
        after: columnsOf(device),
      }))
      await updatedDevices(db, rows)
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

function isByContact(contact: DeviceFilter['contact']): boolean {
  return contact?.state === 'CURRENT' || contact?.state === 'OVERDUE'
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
  return { state: suspension_state as Suspension['state'], since: Number(suspended_since), by: suspended_by }
}
