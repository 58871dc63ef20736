/** A device signs a short-lived JWT with its own key, which the service API and the broker also accept. */
import { decodeJwt } from 'jose'
import { z } from 'zod'
import { CodedError } from '../../protocol/errors.ts'
import { openJws } from '../../protocol/signing.ts'
import { jsonText, parseJson } from '../../protocol/parse-json.ts'
import type { Store } from '../storage/store.ts'
import { importPublicKey } from './device-key.ts'
import { DEVICE_TOKEN_LIFETIME_S_MAX, TOKEN_SKEW_S } from './limits.ts'
import type { Device, KnownDeviceKey } from '../storage/device-records.ts'
import { requireTrusted } from '../storage/require-trusted.ts'

export interface DeviceAccess {
  readonly device: Device
  readonly instanceIds: readonly string[]
}

const claims = z.object({
  iss: z.string(),
  aud: z.union([z.string(), z.array(z.string())]),
  nbf: z.number(),
  iat: z.number(),
  exp: z.number(),
  cnf: z.object({ jwk: z.object({ kid: z.string(), kty: z.literal('CLIENT') }) }),
})

/** @throws CodedError TOKEN_INVALID, TOKEN_NOT_IN_TIME, DEVICE_REVOKED, DEVICE_KEY_REPLACED */
export async function authenticateDevice(found: KnownDeviceKey, token: string, now: number): Promise<DeviceAccess> {
  const { device, publicKey, thumbprint, state } = found
  const key = importPublicKey(publicKey)
  if (key === undefined) throw new Error('invariant: the key of a device was usable when it was registered')
  const opened = await openJws(token, key)
  if (opened === undefined) {
    throw new CodedError('TOKEN_INVALID', 'The token is malformed or its signature does not fit.')
  }
  const parsed = claims.safeParse(parseJson(jsonText(opened.payload) ?? ''))
  if (!parsed.success || parsed.data.cnf.jwk.kid !== thumbprint || parsed.data.iss !== device.id) {
    throw new CodedError('TOKEN_INVALID', 'The token does not have the claims of a client token.')
  }
  const nowS = Math.floor(now / 1_000)
  if (parsed.data.nbf > nowS + TOKEN_SKEW_S || parsed.data.exp <= nowS - TOKEN_SKEW_S) {
    throw new CodedError('TOKEN_NOT_IN_TIME', 'The token of this device has expired or is not valid yet.')
  }
  if (parsed.data.exp - parsed.data.nbf > DEVICE_TOKEN_LIFETIME_S_MAX) {
    throw new CodedError('TOKEN_INVALID', 'The token of a device must be valid for a day at most.')
  }
  requireTrusted(device)
  if (state === 'PAST') throw new CodedError('DEVICE_KEY_REPLACED', 'This device has another key since.')
  const named = new Set([parsed.data.aud].flat())
  return { device, instanceIds: device.instanceIds.filter((id) => named.has(id)) }
}

/** For a token whose key the request itself introduces. @throws CodedError TOKEN_INVALID */
export async function requireNamed(store: Pick<Store, 'read'>, token: string, deviceId: string): Promise<void> {
  let issuer: unknown
  try {
    issuer = decodeJwt(token).iss
  } catch (cause) {
    throw new CodedError('TOKEN_INVALID', 'The token is not a JWT.', { cause })
  }
  if (issuer === deviceId && (await store.read((reader) => reader.edge.devices.get(deviceId))) !== undefined) return
  throw new CodedError('TOKEN_INVALID', 'The token is not of this device.')
}
