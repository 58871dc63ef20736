/** Issues one-time tokens. A token enrolls one device and permits nothing else. */
import { recordChange } from '../storage/audit.ts'
import { SignJWT } from 'jose'
import type { z } from 'zod'
import {
  ENROLLMENT_TOKEN_TYPE,
  type enrollmentTokenRequest,
  type enrollmentTokenResponse,
} from '../../protocol/edge/enrollment.ts'
import { algorithmOf } from '../../protocol/signing.ts'
import { requireInstance } from '../storage/require-record.ts'
import type { Store } from '../storage/store.ts'
import type { Keyring } from './keyring.ts'
import { ENROLLMENT_TOKEN_LIFETIME_MS } from './limits.ts'
import type { Addresses } from './terms.ts'

export interface IssueEnrollmentToken {
  readonly store: Pick<Store, 'transaction'>
  readonly keys: Keyring
  readonly addresses: () => Addresses
  readonly now: () => number
  readonly newId: () => string
}

/** @throws CodedError NOT_FOUND for an unknown instance */
export async function issueEnrollmentToken(
  { store, keys, addresses, now, newId }: IssueEnrollmentToken,
  { instanceIds, lifetimeMs, name, labels }: z.infer<typeof enrollmentTokenRequest>,
): Promise<z.infer<typeof enrollmentTokenResponse>> {
  const instances = [...new Set(instanceIds.map((id) => id.toLowerCase()))]
  const issuedAt = now()
  const issued = Math.floor(issuedAt / 1000)
  const expires = issued + Math.ceil((lifetimeMs ?? ENROLLMENT_TOKEN_LIFETIME_MS) / 1000)
  const jti = newId()
  await store.transaction(async (tx) => {
    for (const id of instances) await requireInstance(tx, id)
    const detail = { enrollmentToken: jti, instances, name: name ?? null, labels, expiresAt: expires * 1000 }
    await recordChange(tx, issuedAt, { action: 'ISSUE_ENROLLMENT_TOKEN', instanceIds: instances, detail })
  })
  const token = await new SignJWT({
    edge: addresses().edge,
    instances,
    pins: keys.trusted.map(({ keyId }) => keyId),
    ...(name === undefined ? {} : { name }),
    ...(labels === undefined ? {} : { labels }),
  })
    .setProtectedHeader({
      alg: algorithmOf(keys.signer.privateKey),
      typ: ENROLLMENT_TOKEN_TYPE,
      kid: keys.signer.keyId,
    })
    .setJti(jti)
    .setIssuedAt(issued)
    .setExpirationTime(expires)
    .sign(keys.signer.privateKey)
  return { token, expiresAt: expires * 1000 }
}
