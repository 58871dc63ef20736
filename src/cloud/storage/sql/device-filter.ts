/** Which devices a filter selects: by instance, labels, contact, text and the scope of an administrator. */
import { type RawBuilder, type SqlBool, sql as expression } from 'kysely'
import type { Label } from '../../../protocol/edge/labels.ts'
import { CONTACTS, type Contact, type DeviceFilter } from '../device-records.ts'
import { type Sql, countOf } from './sql.ts'

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

async function sizeOf(db: Sql['db'], { members }: DeviceGroup): Promise<number> {
  const counted = expression<{
    count: bigint
  }>`SELECT count(*) AS count FROM (${members} LIMIT ${FEW_MAX + 1}) AS counted`
  const { rows } = await counted.execute(db)
  return Number(rows[0]?.count ?? 0n)
}

async function grouped(db: Sql['db'], filter: DeviceFilter): Promise<Grouped> {
  const groups = groupsOf(filter)
  for (const few of groups) {
    const size = await sizeOf(db, few)
    if (size <= FEW_MAX) return { groups, few, isEmpty: size === 0 }
  }
  return { groups, few: undefined, isEmpty: false }
}

function matching(db: Sql['db'], filter: DeviceFilter, { groups, few }: Grouped) {
  const { contact, search, labels = [], scope = null } = filter
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

/** With the expression that sorts in order of enrollment. */
export async function matchingDevices(db: Sql['db'], filter: DeviceFilter) {
  return matching(db, filter, await grouped(db, filter))
}

export async function countByContact(
  db: Sql['db'],
  filter: Omit<DeviceFilter, 'contact'>,
  { overdueBefore, most }: { readonly overdueBefore: number; readonly most: number },
): Promise<ReadonlyMap<Contact, number>> {
  const group = await grouped(db, filter)
  const counts = new Map(CONTACTS.map((state) => [state, 0]))
  // One by one: a single statement would keep requests waiting on SQLite.
  for (const state of group.isEmpty ? [] : CONTACTS) {
    const { query } = matching(db, { ...filter, contact: { state, overdueBefore } }, group)
    counts.set(state, await countOf(db.selectFrom(query.select('devices.seq').limit(most).as('some'))))
  }
  return counts
}

export function isByContact(contact: DeviceFilter['contact']): boolean {
  return contact?.state === 'CURRENT' || contact?.state === 'OVERDUE'
}
