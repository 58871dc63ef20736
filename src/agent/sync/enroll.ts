/** The token arrives out of band, so the device trusts its fingerprints: a key of the cloud must match one of them. */
import { decodeJwt, decodeProtectedHeader } from 'jose'
import type { z } from 'zod'
import { ENROLLMENT_TOKEN_TYPE, enrollmentClaims } from '../../protocol/edge/enrollment.ts'
import { type KeyLink, keyChange } from '../../protocol/edge/device-key.ts'
import { CodedError, firstProblem, type ErrorCode } from '../../protocol/errors.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { type PublicJwk, thumbprint, unverifiedText } from '../../protocol/signing.ts'
import type { Identity } from '../ledger/journal.ts'
import { takeIdentity } from './memory.ts'
import { ENROLLMENT } from '../runtime/health.ts'
import type { EnrollmentToken } from './ports.ts'
import { linksOf } from './rotate-key.ts'
import { call, showSuspension, type StepContext, type StepResult } from './step.ts'

const REFUSALS: ReadonlySet<ErrorCode> = new Set([
  'ENROLLMENT_REFUSED',
  'TOKEN_INVALID',
  'TOKEN_NOT_IN_TIME',
  'ACCESS_KIND_WRONG',
])

/** @throws CodedError ENROLLMENT_REFUSED, DEVICE_UNKNOWN: this token is useless; DEVICE_REVOKED, TRUST_MISMATCH, CLOUD_UNREACHABLE */
export async function enroll(context: StepContext, enrollmentToken: EnrollmentToken | null): Promise<StepResult> {
  const { clock, health, journal, memory, log } = context
  if (enrollmentToken === null || enrollmentToken.token === null)
    throw new Error('invariant: only a device with a token enrolls')
  const before = memory.identity
  const enrolled = await requestEnrollment(context, enrollmentToken)
  if (before !== null && before.deviceId !== enrolled.deviceId)
    throw unknownDevice(before, { offered: enrolled.deviceId })
  const instanceIds = [...new Set([...(before?.instanceIds ?? []), ...enrolled.instanceIds])]
  const isSameKey = before?.keyId === enrolled.keyId
  const keySince = isSameKey ? before.keySince : clock.reading().now
  const identity: Identity = {
    ...enrolled,
    instanceIds,
    sessions: before?.sessions ?? [],
    ...(keySince === undefined ? {} : { keySince }),
    keyLinks: [...linksOf(context)],
    ...(isSameKey ? { nextKey: before.nextKey ?? null } : {}),
  }
  await journal.saveIdentity(identity)
  // The same token does not lift a later suspension. If recording fails, it is tried again.
  memory.refusedToken = enrollmentToken.token
  await takeIdentity(memory, identity)
  showSuspension(context, null)
  health.clear(ENROLLMENT)
  log.info({ deviceId: identity.deviceId, instances: identity.instanceIds.length }, 'enrolled')
  return 'PLAN_AGAIN'
}

async function requestEnrollment(
  context: StepContext,
  { token, source }: Extract<EnrollmentToken, { token: string }>,
): Promise<Identity> {
  const { cloud, keys, memory, signal } = context
  const key = keys.current
  const claims = readClaims(token, source)
  await showLinksAt(claims, context)
  const request = { publicKey: key.publicJwk, ...(claims.name === undefined ? {} : { name: claims.name }) }
  const enrolling = call(context, () => cloud.enroll(claims.edge, token, request, signal))
  const answer = await enrolling.catch((error: unknown) => {
    if (!(error instanceof CodedError) || !REFUSALS.has(error.code)) throw error
    const message = `The cloud refused the enrollment token in ${source}. ${error.message}`
    throw new CodedError('ENROLLMENT_REFUSED', message, { cause: error })
  })
  const trusted = await pinned(answer.trustedKeys, claims.pins)
  if (trusted.length === 0) {
    memory.contact = 'DOWN'
    throw new CodedError('TRUST_MISMATCH', 'The cloud showed no key that the enrollment token pins.', {
      details: { edge: claims.edge },
    })
  }
  const foreign = answer.instanceIds.find((instanceId) => !claims.instances.includes(instanceId))
  if (foreign !== undefined) {
    memory.contact = 'DOWN'
    throw new CodedError('TRUST_MISMATCH', 'The cloud named an instance that the enrollment token does not.', {
      details: { instanceId: foreign },
    })
  }
  return {
    deviceId: answer.deviceId,
    ...(claims.name === undefined ? {} : { name: claims.name }),
    keyId: key.signer.keyId,
    instanceIds: answer.instanceIds,
    trustedKeys: trusted.map((jwk) => JSON.stringify(jwk)),
    edgeUrl: answer.addresses.edge,
    serviceUrl: answer.addresses.service,
    pushUrl: answer.addresses.push,
    suspension: null,
  }
}

/** A restored cloud that knows only an earlier key would enroll another device. The answer proves nothing and is ignored. */
async function showLinksAt({ edge, instances }: z.infer<typeof enrollmentClaims>, context: StepContext): Promise<void> {
  const { cloud, memory, randomness, signal } = context
  const { identity } = memory
  const links = [...linksOf(context)]
  const deviceId = identity?.deviceId ?? deviceOf(links)
  if (deviceId === null || links.length === 0) return
  const request = { nonce: randomness.token(), links }
  const device = { deviceId, edgeUrl: edge, instanceIds: identity?.instanceIds ?? instances }
  const showing = call(context, () => cloud.showKeyLinks(device, request, signal))
  await showing.catch((error: unknown) => {
    if (!(error instanceof CodedError) || error.code === 'CLOUD_UNREACHABLE') throw error
    // Without a ledger, the device may be new to this cloud.
    if (identity === null) return
    throw error.code === 'TOKEN_INVALID' ? unknownDevice(identity, {}, error) : error
  })
}

function deviceOf(links: readonly KeyLink[]): string | null {
  const text = unverifiedText(links.at(-1)?.introduction ?? '')
  return keyChange.safeParse(parseJson(text ?? '')).data?.deviceId ?? null
}

function unknownDevice(
  { deviceId }: Identity,
  details: Readonly<Record<string, string>>,
  cause?: CodedError,
): CodedError {
  const message = `The cloud does not know the device ${deviceId}, whose ledger is here. This is another cloud, or it was restored from a backup that is older than the enrollment.`
  return new CodedError('DEVICE_UNKNOWN', message, { details: { deviceId, ...details }, cause })
}

/** Does not verify the signature, which the device cannot, nor the expiry, because its clock may be wrong. */
function readClaims(token: string, source: string): z.infer<typeof enrollmentClaims> {
  const refused = (reason: string, cause?: unknown): CodedError =>
    new CodedError('ENROLLMENT_REFUSED', `${source} contains no enrollment token: ${reason}.`, { cause })
  if (/[^\w.-]/.test(token)) throw refused('it has spaces, line breaks or other characters that no token has')
  let claims: unknown
  try {
    if (decodeProtectedHeader(token).typ !== ENROLLMENT_TOKEN_TYPE) throw refused('it is a token of another kind')
    claims = decodeJwt(token)
  } catch (cause) {
    throw cause instanceof CodedError ? cause : refused('it is not a JWT', cause)
  }
  const parsed = enrollmentClaims.safeParse(claims)
  if (!parsed.success) throw refused(firstProblem(parsed.error, 'token'))
  if (!/^https?:$/.test(new URL(parsed.data.edge).protocol)) throw refused('it names no web address')
  return parsed.data
}

async function pinned(keys: readonly PublicJwk[], pins: readonly string[]): Promise<readonly PublicJwk[]> {
  const fits = await Promise.all(keys.map(async (key) => pins.includes(await thumbprint(key))))
  return keys.filter((_key, index) => fits[index] === true)
}
