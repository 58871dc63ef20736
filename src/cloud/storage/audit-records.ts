/**
 * Records of the audit: one row for each change that a caller or the cloud itself makes to rules, line items, rate
 * tables, keys, configuration, devices and sessions.
 */
import type { AuditedAction } from '../../protocol/edge/administration.ts'

/** Who makes a change. CLOUD: the service itself, without a request. */
export interface Actor {
  readonly kind: 'ADMINISTRATOR' | 'CLIENT' | 'DEVICE' | 'CLOUD'
  /** Of the key that signed the token; for devices a thumbprint; with an issuer, its subject. Null for CLOUD. */
  readonly keyId: string | null
  /** Of the key, the device or the person; null: it has none. */
  readonly name: string | null
  /** The OpenID Connect provider of an administrator who signed in; null: others. */
  readonly issuer: string | null
}

export const CLOUD: Actor = { kind: 'CLOUD', keyId: null, name: null, issuer: null }

export interface AuditRecord {
  readonly at: number
  readonly by: Actor
  readonly action: AuditedAction
  readonly instanceId: string | null
  readonly lineItemId: string | null
  readonly deviceId: string | null
  readonly sessionId: string | null
  /** JSON: other objects, and the values that were set. Never a secret. */
  readonly detail: string | null
}

/** Whether the row records sessions that come and go with requests. Such rows are deleted after a while. */
export function isTraffic({ by, action }: Pick<AuditRecord, 'by' | 'action'>): boolean {
  return (by.kind === 'CLIENT' || by.kind === 'DEVICE') && (action === 'OPEN_SESSION' || action === 'CLOSE_SESSION')
}

/** Which rows to show; absent: all. */
export interface AuditFilter {
  readonly deviceId?: string | undefined
  /** Also rows about devices and enrollment tokens of the instance. */
  readonly instanceId?: string | undefined
  /** Key id, or name of the key or device. */
  readonly by?: string | undefined
  readonly action?: AuditedAction | undefined
  /** POSIX ms: `since` inclusive, `until` exclusive. */
  readonly since?: number | undefined
  readonly until?: number | undefined
  /** Includes traffic; see {@link isTraffic}. */
  readonly traffic?: boolean | undefined
  /** The previous response's `next`. */
  readonly before?: bigint | undefined
}
