/** One token, one key. Idempotent for the same key; another key is refused. A known key keeps its device. */
import { recordChange } from '../storage/audit.ts'
import { deviceEvent } from '../events/device-event.ts'
import { errors, jwtVerify } from 'jose'
import { z } from 'zod'
import {
  ENROLLMENT_TOKEN_TYPE,
  type Enrollment,
  type enrollmentRequest,
  enrollmentClaims,
} from '../../protocol/edge/enrollment.ts'
import { type Labels, changedLabels } from '../../protocol/edge/labels.ts'
import { CodedError } from '../../protocol/errors.ts'
import { SIGNING_ALGORITHMS, namedKey, thumbprint } from '../../protocol/signing.ts'
import type { Transaction } from '../storage/store.ts'
import { importPublicKey } from './device-key.ts'
import type { IssueEnrollmentToken } from './issue-enrollment-token.ts'
import type { Keyring } from './keyring.ts'
import { TOKEN_SKEW_S } from './limits.ts'
import type { Device, EnrollmentRecord } from '../storage/device-records.ts'
import { requireTrusted } from '../storage/require-trusted.ts'

/** @throws CodedError TOKEN_INVALID, BAD_REQUEST for an unusable key, ENROLLMENT_REFUSED, DEVICE_REVOKED */
export async function enroll(
  { store, keys, addresses, now, newId }: IssueEnrollmentToken,
  token: string,
  request: z.infer<typeof enrollmentRequest>,
): Promise<Enrollment> {
  const { claims, expired } = await readToken(keys, token, now())
  if (importPublicKey(request.publicKey) === undefined) {
    throw new CodedError('BAD_REQUEST', 'body.publicKey: is not a usable public key')
  }
  const key = { publicKey: request.publicKey, thumbprint: await thumbprint(request.publicKey) }
  const fresh = { id: newId(), enrolledAt: now() }
  const newcomer = { ...key, name: request.name ?? claims.name ?? null, ...fresh }
  const deviceId = await store.transaction(async (tx) => {
    const used = await tx.edge.enrollments.get(claims.jti)
    if (used !== undefined) return whoUsed(tx, used, newcomer, claims)
    if (expired) throw refused('This enrollment token has expired.')
    const device = await admit(tx, claims, newcomer)
    const record = { jti: claims.jti, thumbprint: key.thumbprint, deviceId: device.id, at: fresh.enrolledAt }
    if (await tx.edge.enrollments.claim(record)) {
      const by = { kind: 'DEVICE', keyId: key.thumbprint, name: device.name, issuer: null } as const
      const detail = { enrollmentToken: claims.jti, instances: claims.instances }
      await recordChange(tx, fresh.enrolledAt, { action: 'ENROLL_DEVICE', deviceId: device.id, by, detail })
      const enrolled = { what: `enrolled/${claims.jti}`, at: fresh.enrolledAt, detail: { keyId: key.thumbprint } }
      await tx.events.append(deviceEvent(device, { type: 'device.enrolled', ...enrolled }))
      return device.id
    }
    // Another node enrolled meanwhile: with the same key, it created the same device.
    const taken = await tx.edge.enrollments.get(claims.jti)
    if (taken === undefined) throw new Error('invariant: a token that was used stays used')
    return whoUsed(tx, taken, newcomer, claims)
  })
  return {
    deviceId,
    instanceIds: claims.instances,
    trustedKeys: keys.trusted.map(({ jwk }) => jwk),
    addresses: addresses(),
  }
}

async function whoUsed(
  tx: Transaction,
  used: EnrollmentRecord,
  { thumbprint, enrolledAt }: Newcomer,
  token: Claims,
): Promise<string> {
  const found = await tx.edge.devices.withKey(thumbprint)
  if (found?.device.id !== used.deviceId) throw refused('This enrollment token was used by another device.')
  suspensionAfter(found.device, token, enrolledAt)
  return used.deviceId
}

/** Whether this cloud signed the token, expired or not. @throws CodedError TOKEN_INVALID */
export async function requireEnrollmentToken(
  { keys, now }: Pick<IssueEnrollmentToken, 'keys' | 'now'>,
  token: string,
): Promise<void> {
  await readToken(keys, token, now())
}

type Claims = z.infer<typeof enrollmentClaims>

type Newcomer = Pick<Device, 'id' | 'name' | 'publicKey' | 'thumbprint' | 'enrolledAt'>

async function admit(tx: Transaction, token: Claims, newcomer: Newcomer): Promise<Device> {
  const { instances } = token
  for (const id of instances) {
    if ((await tx.instances.get(id)) === undefined) throw refused('An instance of this enrollment token is gone.')
  }
  const known = await tx.edge.devices.withKey(newcomer.thumbprint)
  if (known?.state === 'PAST') throw refused('The key of this device was replaced by another one.')
  const locked = known === undefined ? undefined : await tx.edge.devices.lock(known.device.id)
  if (locked !== undefined) {
    requireTrusted(locked)
    // Keep its other instances: late segments may still name them.
    const instanceIds = [...new Set([...locked.instanceIds, ...instances])].sort()
    const device = {
      ...locked,
      instanceIds,
      name: newcomer.name ?? locked.name,
      suspension: suspensionAfter(locked, token, newcomer.enrolledAt),
    }
    await tx.edge.devices.save(device)
    if (token.labels !== undefined) await tx.edge.devices.label(device.id, labelsAfter(device, token.labels))
    return device
  }
  const device: Device = {
    ...newcomer,
    instanceIds: [...instances].sort(),
    keySince: newcomer.enrolledAt,
    nextKey: null,
    replaceKey: null,
    revokedAt: null,
    revokedBy: null,
    suspension: null,
    lastSyncAt: null,
    software: null,
    epoch: 0,
    backlog: 0,
    appliedPolicies: [],
    releaseRequested: false,
    clock: null,
    labels: changedLabels({}, { set: token.labels }),
  }
  await tx.edge.devices.insert(device)
  return device
}

function labelsAfter({ labels }: Device, set: Labels): Labels {
  try {
    return changedLabels(labels, { set })
  } catch (cause) {
    if (!(cause instanceof CodedError)) throw cause
    throw new CodedError('ENROLLMENT_REFUSED', cause.message, { cause })
  }
}

/** Only a token issued after a termination lifts it; a lock is never lifted by enrolling. @throws CodedError ENROLLMENT_REFUSED */
function suspensionAfter({ suspension }: Device, { iat }: Claims, now: number): Device['suspension'] {
  if (suspension?.state !== 'TERMINATED') return suspension
  const isAhead = suspension.since > now
  // A clock ahead can have dated an older token later than the termination.
  if (!isAhead && iat > now / 1_000 + TOKEN_SKEW_S) {
    throw refused("The cloud's clock was ahead when this enrollment token was made: the device needs a fresh one.")
  }
  if ((iat + 1) * 1_000 > suspension.since) return null
  if (isAhead) {
    const endedAt = new Date(suspension.since).toISOString()
    const text = `The cloud's clock was ahead when the service of this device was ended, at ${endedAt}.`
    throw refused(`${text} Terminate the device again, then make a fresh enrollment token.`)
  }
  throw refused('The service of this device was ended after this enrollment token was made: it needs a fresh one.')
}

/** The claims of a token signed by this cloud; an expired token still identifies its user. */
async function readToken(
  keys: Keyring,
  token: string,
  now: number,
): Promise<{ readonly claims: Claims; readonly expired: boolean }> {
  const key = keys.trusted.find(({ keyId }) => keyId === namedKey(token))
  if (key === undefined) throw new CodedError('TOKEN_INVALID', 'The enrollment token is not from this service.')
  let payload: unknown
  let expired = false
  try {
    const verified = await jwtVerify(token, key.publicKey, {
      algorithms: [...SIGNING_ALGORITHMS],
      typ: ENROLLMENT_TOKEN_TYPE,
      currentDate: new Date(now),
      clockTolerance: TOKEN_SKEW_S,
    })
    payload = verified.payload
  } catch (cause) {
    if (!(cause instanceof errors.JWTExpired)) {
      throw new CodedError('TOKEN_INVALID', 'The enrollment token is malformed or its signature does not fit.', {
        cause,
      })
    }
    payload = cause.payload
    expired = true
  }
  const claims = enrollmentClaims.safeParse(payload)
  if (!claims.success) throw new CodedError('TOKEN_INVALID', 'This token is no enrollment token.')
  return { claims: claims.data, expired }
}

function refused(message: string): CodedError {
  return new CodedError('ENROLLMENT_REFUSED', message)
}
