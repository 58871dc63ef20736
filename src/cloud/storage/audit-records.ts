/**
 * Records of the audit: one row for each change that a caller or the cloud itself makes to rules, line items, rate
 * tables, keys, configuration, devices and sessions.
 */
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

export type AuditedAction =
  | 'CREATE_INSTANCE'
  | 'IMPORT_INSTANCE'
  | 'IMPORT_USE'
  | 'MAP_LINE_ITEM'
  | 'DELETE_LINE_ITEM'
  | 'ADD_ACTIONS'
  | 'REPLACE_ACTIONS'
  | 'DELETE_ACTIONS'
  | 'ADD_CONDITIONS'
  | 'CHANGE_CONDITIONS'
  | 'DELETE_CONDITIONS'
  | 'SET_CONSUMPTION_LIMIT'
  | 'DELETE_CONSUMPTION_LIMIT'
  | 'CREATE_RATE_TABLE'
  | 'DELETE_RATE_TABLE'
  | 'CHANGE_CONFIGURATION'
  | 'SAVE_KEYS'
  | 'DELETE_KEY'
  | 'OPEN_SESSION'
  | 'CLOSE_SESSION'
  | 'LOCK_SESSION'
  | 'UNLOCK_SESSION'
  | 'TERMINATE_SESSION'
  | 'ISSUE_ENROLLMENT_TOKEN'
  | 'ENROLL_DEVICE'
  | 'LABEL_DEVICE'
  | 'LOCK_DEVICE'
  | 'UNLOCK_DEVICE'
  | 'TERMINATE_DEVICE'
  | 'DRAIN_DEVICE'
  | 'REVOKE_DEVICE'
  | 'ROTATE_DEVICE_KEY'
  | 'ANNOUNCE_DEVICE_KEY'
  | 'REPLACE_DEVICE_KEY'
  | 'SET_OFFLINE_POLICY'
  | 'SET_CLOUD_RESERVE'
  | 'NOTICE_RESTORE'
  | 'END_RECOVERY'
  | 'CONFIRM_CLOCK'
  | 'CONFIRM_SETTLEMENT'
  | 'REPLAY_EVENTS'
  | 'DISCARD_DEAD_LETTERS'
  | 'FORGET_EVENT_SINK'
  | 'ARCHIVE_USAGE'

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
