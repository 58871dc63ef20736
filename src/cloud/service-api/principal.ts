/** Authenticated callers of the service API and the edge API. */
import type { Role } from '../../protocol/service/keys.ts'
import type { Device } from '../storage/device-records.ts'

/** Lower case. */
export type InstanceIds = ReadonlySet<string>

/** Roles, and the instances in which an administrator has them. */
export interface Right {
  /** Null: all. */
  readonly roles: readonly Role[] | null
  /** Null: all. */
  readonly instances: InstanceIds | null
}

/** A caller with a registered key or the key of an enrolled device, or an administrator who signed in. */
export type Principal = {
  /** Of the registered key, the thumbprint of the device's key, or the subject at `issuer`. */
  readonly keyId: string
  /** Of the key, the device or the person. Only `keyId` and `issuer` identify the caller. */
  readonly name: string | null
  /** The OpenID Connect provider of an administrator who signed in; null for callers with a key. */
  readonly issuer: string | null
  /** That the caller is limited to; for an administrator, with the role of the operation. Null: all. */
  readonly scope: InstanceIds | null
} & (
  | {
      readonly kind: 'ADMINISTRATOR'
      readonly rights: readonly Right[]
      readonly instances: null
      readonly deviceId: null
    }
  /** `instances`: those that the token names. */
  | { readonly kind: 'CLIENT'; readonly instances: InstanceIds; readonly deviceId: null }
  | {
      readonly kind: 'DEVICE'
      readonly instances: InstanceIds
      readonly deviceId: string
      /** As it was when its token was checked. */
      readonly device: Device
    }
)

export type Administrator = Extract<Principal, { readonly kind: 'ADMINISTRATOR' }>

/** Every role permits reading. */
export function permits({ roles }: Right, role: Role): boolean {
  return roles === null || role === 'read' || roles.includes(role)
}

/** The instances in which an administrator has a role; null: all. */
export function scopeWith(rights: readonly Right[], role: Role): InstanceIds | null {
  const scopes = rights.filter((right) => permits(right, role)).map(({ instances }) => instances)
  return scopes.includes(null) ? null : new Set(scopes.flatMap((instances) => [...(instances ?? [])]))
}

export function lowerCase(ids: readonly string[]): InstanceIds {
  return new Set(ids.map((id) => id.toLowerCase()))
}
