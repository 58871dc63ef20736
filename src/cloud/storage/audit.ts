/** Writes the audit: each row in the transaction of the change that it records. */
import type { Actor, AuditRecord } from './audit-records.ts'
import type { Store, Transaction } from './store.ts'

interface Change extends Partial<Pick<AuditRecord, 'instanceId' | 'lineItemId' | 'deviceId' | 'sessionId'>> {
  readonly action: AuditRecord['action']
  readonly detail?: Readonly<Record<string, unknown>>
  /** Default: who the transaction is for. */
  readonly by?: Actor
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
  await tx.edge.audit.append({ at, by, action, instanceId, lineItemId, deviceId, sessionId, detail: text })
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
  return {
    read: (work) => store.read(work),
    onOutbox: (listener) => store.onOutbox(listener),
    close: () => store.close(),
    transaction: (work) => store.transaction((tx) => work({ ...tx, actor })),
  }
}

/** The name of the key or device, or the key id. */
export function nameOf({ name, keyId }: Actor): string {
  return name ?? keyId ?? 'twin'
}
