/**
 * The edge API over HTTP. Devices use their own tokens, administrators theirs, and new devices an enrollment token.
 */
import type { FastifyInstance } from 'fastify'
import { z } from 'zod'
import {
  accountLedger as accountLedgerForm,
  cloudReserveRequest,
  cloudReserveState,
  deviceEvidence,
  offlinePolicyRequest,
  offlinePolicyState,
  recoveryState,
} from '../../protocol/edge/administration.ts'
import { attachRequest } from '../../protocol/edge/attach.ts'
import {
  enrollmentRequest,
  enrollmentResponse,
  enrollmentTokenRequest,
  enrollmentTokenResponse,
} from '../../protocol/edge/enrollment.ts'
import { keyChangeRequest, keyLinksRequest } from '../../protocol/edge/device-key.ts'
import { signingKeys } from '../../protocol/edge/signing-keys.ts'
import { POLICY_MEDIA_TYPE, policyTag } from '../../protocol/edge/policy-document.ts'
import { SYNC_BODY_BYTES_MAX, signedAnswer, syncRequest } from '../../protocol/edge/sync.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Authenticator } from '../service-api/authenticate.ts'
import { accountLedger } from '../accounts/account-ledger.ts'
import { type Attach, attach } from '../sync/attach.ts'
import { requireNamed } from '../devices/authenticate-device.ts'
import { type CloudReserves, setCloudReserve, showCloudReserve } from '../accounts/cloud-reserve.ts'
import { type ChangeDeviceKey, announceKey, showLinks } from '../devices/change-device-key.ts'
import { showEvidence } from '../devices/devices.ts'
import { type Enroll, enroll, requireEnrollmentToken } from '../devices/enroll.ts'
import { type IssueEnrollmentToken, issueEnrollmentToken } from '../devices/issue-enrollment-token.ts'
import { EDGE_BODY_BYTES_MAX } from '../devices/limits.ts'
import { setOfflinePolicy, showOfflinePolicy } from '../policy/offline-policy.ts'
import { type PolicyDocuments, signedPolicy } from '../policy/policy-document.ts'
import { signTime } from '../devices/sign-time.ts'
import { type WatchedSync, sync } from '../sync/sync.ts'
import { overrideRecovery, showRecovery } from '../sync/recovery/recovery.ts'
import type { Store } from '../storage/store.ts'
import { type DeviceParts, deviceRoutes } from './edge-device-routes.ts'
import { type SweepDeps, sweepRoutes } from './edge-sweep-routes.ts'
import { type EdgeRoute, edgeRoute, inDevice, keyOf, registerEdgeRoutes } from './edge-area.ts'
import type { Slots } from './slots.ts'
import { inInstance, requireInstanceOf } from './routes.ts'

export type EdgeDeps = IssueEnrollmentToken &
  Enroll &
  Attach &
  WatchedSync &
  PolicyDocuments &
  ChangeDeviceKey &
  CloudReserves &
  DeviceParts & {
    readonly store: Store
    readonly authenticator: Authenticator
    readonly slots: Slots
    readonly version: string
    readonly sweeps: SweepDeps
  }

const inLineItem = inInstance.extend({ lineItemId: z.string().min(1).max(256) })

/** Returns the registered routes. */
export function registerEdge(http: FastifyInstance, prefix: string, deps: EdgeDeps): readonly EdgeRoute[] {
  const routes = edgeRoutes(deps)
  const isForEnrollment = (token: string): Promise<void> => requireEnrollmentToken(deps, token)
  const requireDeviceNamed = (token: string, deviceId: string): Promise<void> =>
    requireNamed(deps.store, token, deviceId)
  registerEdgeRoutes(http, prefix, { ...deps, requireEnrollmentToken: isForEnrollment, requireDeviceNamed }, routes)
  return routes
}

const small = { bodyMax: EDGE_BODY_BYTES_MAX }
const compactJws = z.string().regex(/^[\w-]+\.[\w-]+\.[\w-]+$/)

export function edgeRoutes(deps: EdgeDeps): readonly EdgeRoute[] {
  const { keys, now, store } = deps
  const deviceOf = async (deviceId: string) => {
    const device = await store.read((reader) => reader.edge.devices.get(deviceId))
    if (device === undefined) throw new Error('invariant: a device that has signed its token is known')
    return device
  }
  /** Reads the suspension last, so that a new command takes effect at once. */
  const said = async (deviceId: string, nonce: string, answer: string): Promise<SignedAnswer> => {
    const { suspension } = await deviceOf(deviceId)
    return { answer, time: await signTime(keys, { nonce, answer, time: now(), suspension }) }
  }
  return [
    edgeRoute({
      method: 'POST',
      path: '/enrollment-tokens',
      access: 'ADMINISTRATION',
      ...small,
      body: enrollmentTokenRequest,
      id: 'issueEnrollmentToken',
      tag: 'Enrollment',
      summary: 'Create a one-time enrollment token for a device',
      example: { instanceIds: ['64d2028c-ae87-4069-a624-66089d957ef9'], name: 'press 7' },
      answers: {
        201: { description: 'The token. Pass it to the device out of band.', body: enrollmentTokenResponse },
      },
      errors: ['NOT_FOUND'],
      handle: async ({ body }) => ({ status: 201, body: await issueEnrollmentToken(deps, body) }),
    }),
    edgeRoute({
      method: 'POST',
      path: '/enrollments',
      access: 'ENROLLMENT',
      ...small,
      body: enrollmentRequest,
      id: 'enroll',
      tag: 'Enrollment',
      summary: 'Register the key of a device',
      description: 'Idempotent for the same token and key. The token is refused with another key.',
      answers: { 200: { description: 'The device is enrolled.', body: enrollmentResponse } },
      errors: ['ENROLLMENT_REFUSED'],
      handle: async ({ token, body }) => ({ status: 200, body: await enroll(deps, token, body) }),
    }),
    edgeRoute({
      method: 'GET',
      path: '/signing-keys',
      access: 'DEVICE',
      id: 'getSigningKeys',
      tag: 'Devices',
      summary: 'Get the chain of signing keys: each key is introduced by the previous one',
      answers: { 200: { description: 'Compact JWS, oldest first.', body: signingKeys } },
      handle: async () => ({ status: 200, body: { introductions: [...(keys.introductions ?? [])] } }),
    }),
    edgeRoute({
      method: 'GET',
      path: '/instances/:instanceId/policy',
      access: 'DEVICE',
      params: inInstance,
      conditional: true,
      id: 'getPolicy',
      tag: 'Devices',
      summary: 'Get the signed rules of an instance',
      answers: {
        200: {
          description: 'A compact JWS. The ETag is the revision.',
          body: compactJws,
          mediaType: POLICY_MEDIA_TYPE,
        },
        304: { description: 'The revision in If-None-Match is the newest.' },
      },
      errors: ['INSTANCE_NOT_IN_TOKEN', 'NOT_FOUND'],
      handle: async ({ params, principal, ifNoneMatch }) => {
        if (principal !== null) requireInstanceOf(principal, params.instanceId)
        const found = await signedPolicy(deps, params.instanceId, revisionOf(ifNoneMatch))
        if (found === undefined) throw new CodedError('NOT_FOUND', `There is no instance ${params.instanceId}.`)
        const headers = { 'cache-control': 'no-cache' }
        if (found === null) return { status: 304, headers }
        return { status: 200, headers: { ...headers, etag: policyTag(found.revision) }, text: found.document }
      },
    }),
    edgeRoute({
      method: 'POST',
      path: '/devices/:deviceId/attach',
      access: 'DEVICE',
      ...small,
      params: inDevice,
      body: attachRequest,
      id: 'attach',
      tag: 'Devices',
      summary: 'Start the next epoch of a device',
      answers: { 200: { description: 'Two signed documents.', body: signedAnswer } },
      errors: ['NOT_FOUND', 'ATTACH_TOO_OFTEN', 'DEVICE_TERMINATED'],
      handle: async ({ params, body }) => {
        const document = await attach(deps, params.deviceId, body)
        return { status: 200, body: await said(params.deviceId, body.nonce, document) }
      },
    }),
    edgeRoute({
      method: 'POST',
      path: '/devices/:deviceId/sync',
      access: 'DEVICE',
      bodyMax: SYNC_BODY_BYTES_MAX,
      gzip: true,
      params: inDevice,
      body: syncRequest,
      id: 'sync',
      tag: 'Devices',
      summary: 'Deliver a segment of the ledger, and get grants',
      description: 'The body can be compressed with Content-Encoding gzip.',
      answers: { 200: { description: 'Two signed documents.', body: signedAnswer } },
      errors: ['SEGMENT_REJECTED', 'GRANTS_FORGOTTEN'],
      handle: async ({ params, body: { segment, nonce, proofs }, log }) => {
        const device = await deviceOf(params.deviceId)
        const taken = await sync(deps, device, segment, proofs)
        if (!taken.taken) {
          const details = { deviceId: device.id, ...taken.details }
          log.warn(details, 'a segment was refused')
          if (taken.answer !== undefined) return { status: 200, body: await said(device.id, nonce, taken.answer) }
          throw new CodedError('SEGMENT_REJECTED', taken.problem, { details })
        }
        if (taken.unbilled !== null) log.warn({ deviceId: device.id, ...taken.unbilled }, 'entries are not billed')
        return { status: 200, body: await said(device.id, nonce, taken.answer) }
      },
    }),
    edgeRoute({
      method: 'POST',
      path: '/devices/:deviceId/keys',
      access: 'DEVICE',
      ...small,
      params: inDevice,
      body: keyChangeRequest,
      id: 'announceDeviceKey',
      tag: 'Devices',
      summary: 'Announce the next key of a device',
      description: 'Both keys are then accepted. The first call with the next key invalidates the previous one.',
      answers: { 200: { description: 'Two signed documents.', body: signedAnswer } },
      errors: ['NOT_FOUND', 'DEVICE_KEY_REFUSED'],
      handle: async ({ params: { deviceId }, body }) => {
        const document = await announceKey(deps, deviceId, body.nonce, body.link)
        return { status: 200, body: await said(deviceId, body.nonce, document) }
      },
    }),
    edgeRoute({
      method: 'POST',
      path: '/devices/:deviceId/keys/links',
      access: 'INTRODUCED',
      ...small,
      params: inDevice,
      body: keyLinksRequest,
      id: 'showDeviceKeyLinks',
      tag: 'Devices',
      summary: 'Prove a device key that the cloud does not know',
      description: 'For a cloud that was restored from a backup. The token is signed with the newest key.',
      answers: { 200: { description: 'Two signed documents.', body: signedAnswer } },
      errors: ['NOT_FOUND', 'DEVICE_KEY_REFUSED'],
      handle: async ({ params: { deviceId }, token, body }) => {
        const document = await showLinks(deps, deviceId, token, body.nonce, body.links)
        return { status: 200, body: await said(deviceId, body.nonce, document) }
      },
    }),
    ...deviceRoutes(deps),
    ...sweepRoutes(deps),
    edgeRoute({
      method: 'GET',
      path: '/devices/:deviceId/evidence',
      access: 'ADMINISTRATION',
      params: inDevice,
      id: 'showEvidence',
      tag: 'Administration',
      summary: 'List segments of a device that were not merged, newest first',
      answers: { 200: { description: 'Up to 20 segments.', body: deviceEvidence } },
      errors: ['NOT_FOUND'],
      handle: async ({ params: { deviceId } }) => ({ status: 200, body: await showEvidence(deps, deviceId) }),
    }),
    edgeRoute({
      method: 'GET',
      path: '/instances/:instanceId/line-items/:lineItemId/offline-policy',
      access: 'ADMINISTRATION',
      params: inLineItem,
      id: 'showOfflinePolicy',
      tag: 'Administration',
      summary: 'Show the offline policy of a line item',
      answers: { 200: { description: 'The policy, with the exposure of all devices.', body: offlinePolicyState } },
      errors: ['NOT_FOUND'],
      handle: async ({ params }) => {
        return { status: 200, body: await showOfflinePolicy(deps, params.instanceId, params.lineItemId) }
      },
    }),
    edgeRoute({
      method: 'PUT',
      path: '/instances/:instanceId/line-items/:lineItemId/offline-policy',
      access: 'ADMINISTRATION',
      ...small,
      params: inLineItem,
      body: offlinePolicyRequest,
      id: 'setOfflinePolicy',
      tag: 'Administration',
      summary: 'Set the offline policy of a line item',
      description:
        'The policy applies when a grant is used up and the device cannot reach the cloud. Overspend is billed; it can exceed the pool by up to the exposure.',
      example: { policy: 'essential', overspendCap: '50000000' },
      answers: { 200: { description: 'The policy, with the exposure of all devices.', body: offlinePolicyState } },
      errors: ['NOT_FOUND'],
      handle: async ({ params, body }) => {
        const cap = body.policy === 'essential' ? body.overspendCap : 0n
        return { status: 200, body: await setOfflinePolicy(deps, params.instanceId, params.lineItemId, cap) }
      },
    }),
    edgeRoute({
      method: 'GET',
      path: '/instances/:instanceId/line-items/:lineItemId/cloud-reserve',
      access: 'ADMINISTRATION',
      params: inLineItem,
      id: 'showCloudReserve',
      tag: 'Administration',
      summary: 'Show how many tokens of a line item are reserved for the cloud',
      answers: { 200: { description: 'The reserve.', body: cloudReserveState } },
      errors: ['NOT_FOUND'],
      handle: async ({ params }) => {
        return { status: 200, body: await showCloudReserve(deps, params.instanceId, params.lineItemId) }
      },
    }),
    edgeRoute({
      method: 'PUT',
      path: '/instances/:instanceId/line-items/:lineItemId/cloud-reserve',
      access: 'ADMINISTRATION',
      ...small,
      params: inLineItem,
      body: cloudReserveRequest,
      id: 'setCloudReserve',
      tag: 'Administration',
      summary: 'Set how many tokens of a line item are reserved for the cloud',
      description:
        'Devices never receive these tokens, in each period; tokens already on devices are recalled. Charges of the cloud count towards the reserve.',
      example: { tokens: '50000000' },
      answers: { 200: { description: 'The reserve.', body: cloudReserveState } },
      errors: ['NOT_FOUND'],
      handle: async (call) => {
        const order = { ...call.params, tokens: call.body.tokens }
        return { status: 200, body: await setCloudReserve(deps, order, keyOf(call)) }
      },
    }),
    edgeRoute({
      method: 'GET',
      path: '/instances/:instanceId/accounts',
      access: 'ADMINISTRATION',
      params: inInstance,
      id: 'showAccounts',
      tag: 'Administration',
      summary: 'Show the accounts of an instance with the balances of each device',
      answers: { 200: { description: 'All accounts.', body: accountLedgerForm } },
      errors: ['NOT_FOUND'],
      handle: async ({ params }) => ({ status: 200, body: await accountLedger(deps, params.instanceId) }),
    }),
    edgeRoute({
      method: 'GET',
      path: '/instances/:instanceId/recovery',
      access: 'ADMINISTRATION',
      params: inInstance,
      id: 'showRecovery',
      tag: 'Administration',
      summary: 'Show the recovery after a restore from a backup',
      answers: { 200: { description: 'Devices that it waits for, and withheld tokens.', body: recoveryState } },
      errors: ['NOT_FOUND'],
      handle: async ({ params }) => ({ status: 200, body: await showRecovery(deps, params.instanceId) }),
    }),
    edgeRoute({
      method: 'POST',
      path: '/instances/:instanceId/recovery/end',
      access: 'ADMINISTRATION',
      ...small,
      params: inInstance,
      id: 'endRecovery',
      tag: 'Administration',
      summary: 'End the recovery: sell withheld tokens, at the risk of selling them twice',
      answers: {
        200: { description: 'The state before the end, with the amounts that may be sold twice.', body: recoveryState },
      },
      errors: ['NOT_FOUND'],
      handle: async (call) => ({
        status: 200,
        body: await overrideRecovery(deps, call.params.instanceId, keyOf(call)),
      }),
    }),
  ]
}

type SignedAnswer = z.input<typeof signedAnswer>

/** Revision of an entity tag; null if absent or not from this service. */
function revisionOf(tag: string | undefined): number | null {
  const digits = /^(?:W\/)?"(\d{1,15})"$/.exec(tag?.trim() ?? '')?.[1]
  return digits === undefined ? null : Number(digits)
}
