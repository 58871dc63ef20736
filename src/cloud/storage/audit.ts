/** Writes the audit: each row in the transaction of the change that it records. */
import type { Actor, AuditRecord } from './audit-records.ts'
import type { Store, Transaction } from './store.ts'
import { withTransactions } from './with-transactions.ts'

interface Change extends Partial<Pick<AuditRecord, 'instanceId' | 'lineItemId' | 'deviceId' | 'sessionId'>> {
  readonly action: AuditRecord['action']
  readonly detail?: Readonly<Record<string, unknown>>
  /** Default: who the transaction is for. */
  readonly by?: Actor
  /** Of a change that concerns several. Default: those of the device. */
  readonly instanceIds?: readonly string[]
}

/** @param at POSIX ms */
export async function recordChange(tx: Pick<Transaction, 'actor' | 'edge'>, at: number, change: Change): Promise<void> {
  const {
    action,
    by = tx.actor,
    detail,
    instanceId = null,
    lineItemId = null,
    deviceId = null,
    sessionId = null,
  } = change
  const text = detail === undefined ? null : JSON.stringify(detail)
  const device = instanceId === null && deviceId !== null ? await tx.edge.devices.get(deviceId) : undefined
  const instanceIds = change.instanceIds ?? device?.instanceIds ?? []
  await tx.edge.audit.append({ at, by, action, instanceId, lineItemId, deviceId, sessionId, detail: text }, instanceIds)
}

const TRAFFIC_FORGOTTEN_AT_A_TIME = 500

/**
 * Deletes records of sessions that clients and devices opened and closed: without a limit, they could fill the database.
 * @param before POSIX ms: older records are deleted
 * @param most records are kept only among this number of the newest records of the audit
 * @returns whether there may be more
 */
export async function forgetTraffic(store: Pick<Store, 'transaction'>, before: number, most: number): Promise<boolean> {
  const forgotten = await store.transaction((tx) =>
    tx.edge.audit.forgetTraffic(before, most, TRAFFIC_FORGOTTEN_AT_A_TIME),
  )
  return forgotten === TRAFFIC_FORGOTTEN_AT_A_TIME
}

const IDS_MAX = 20

/** Ids for the detail of a row: the first of them, and the count. */
export function idsOf(all: readonly { readonly id: string }[]): {
  readonly ids: readonly string[]
  readonly count: number
} {
  return { ids: all.slice(0, IDS_MAX).map(({ id }) => id), count: all.length }
}

/** The store for the changes of one caller. */
export function actingAs(store: Store, actor: Actor): Store {
  return withTransactions(store, (work) => store.transaction((tx) => work({ ...tx, actor })))
}

/** As {@link actingAs}, for the parts that a function needs. */
export function actingFor<Deps extends { readonly store: Store }>(deps: Deps, actor: Actor): Deps {
  return { ...deps, store: actingAs(deps.store, actor) }
}

/** Identifies a caller among keys and signed-in administrators. */
export function identityOf({ issuer, keyId }: Pick<Actor, 'issuer'> & { readonly keyId: string }): string {
  return issuer === null ? keyId : `${issuer}#${keyId}`
}

/** The name of the key or device, or the key id. People can often choose their names, so the subject goes with them. */
export function nameOf({ name, keyId, issuer }: Actor): string {
  if (issuer !== null && name !== null) return `${name} (${keyId})`
  return name ?? keyId ?? 'twin'
}
