/** What a device does with its own token: get its rules, deliver its ledger, and change its key. */
import { z } from 'zod'
import { attachRequest } from '../../../protocol/edge/attach.ts'
import { keyChangeRequest, keyLinksRequest } from '../../../protocol/edge/device-key.ts'
import { ENGINE_MAX } from '../../../protocol/edge/engines.ts'
import { POLICY_MEDIA_TYPE, policyTag } from '../../../protocol/edge/policy-document.ts'
import { signingKeys } from '../../../protocol/edge/signing-keys.ts'
import { SYNC_BODY_BYTES_MAX, signedAnswer, signedTime, syncRequest } from '../../../protocol/edge/sync.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { declaredTextLength, sha256, signDocumentAside } from '../../../protocol/signing.ts'
import { type ChangeDeviceKey, announceKey, showLinks } from '../../devices/change-device-key.ts'
import type { IssueEnrollmentToken } from '../../devices/issue-enrollment-token.ts'
import type { Keyring } from '../../devices/keyring.ts'
import { type PolicyDocuments, signedPolicy } from '../../devices/policy-document.ts'
import { Rarely } from '../../runtime/rarely.ts'
import { Turns } from '../../runtime/turns.ts'
import type { Device } from '../../storage/device-records.ts'
import { noInstance } from '../../storage/require-record.ts'
import type { Store } from '../../storage/store.ts'
import { type Attach, attach } from '../../sync/attach.ts'
import type { SyncOutcome } from '../../sync/receive-segment.ts'
import { type WatchedSyncDeps, sync } from '../../sync/sync.ts'
import { wholeNumber } from './devices.ts'
import { SyncGate } from './sync-gate.ts'
import { parseTags } from '../entity-tags.ts'
import { type Answer, type Operation, edgeOperation, inDevice, inInstance } from '../operation.ts'

export type OwnDevice = Attach &
  WatchedSyncDeps &
  PolicyDocuments &
  ChangeDeviceKey &
  Pick<IssueEnrollmentToken, 'addresses'> & { readonly store: Store; readonly keys: Keyring }

/** Of the text, which a few characters can expand to. Parsed, a segment of a thousand entries takes megabytes. */
const LONG_SEGMENT_BYTES = 256 * 1024

/** More would not be faster: they are opened on one thread. */
const LONG_SEGMENTS_AT_ONCE = 2

/** More would wait in the database. Opened segments of all devices that come back would take memory, and time to collect it. */
const SEGMENTS_AT_ONCE = 64

/** Not strict: a later agent may state more. */
const enginesQuery = z.object({ engine: wholeNumber(ENGINE_MAX), oldestEngine: wholeNumber(ENGINE_MAX) })
const compactJws = z.string().regex(/^[\w-]+\.[\w-]+\.[\w-]+$/)

const own = {
  method: 'POST',
  principals: ['DEVICE'],
  params: inDevice,
  tag: 'Devices',
  answers: { 200: { description: 'Two signed documents.', body: signedAnswer } },
} as const

export function ownDeviceOperations(deps: OwnDevice): readonly Operation[] {
  return [...documentOperations(deps), ...syncOperations(deps), ...keyOperations(deps)]
}

function documentOperations(deps: OwnDevice): readonly Operation[] {
  return [
    edgeOperation({
      method: 'GET',
      path: '/signing-keys',
      principals: ['DEVICE'],
      cells: 'ANY',
      id: 'getSigningKeys',
      tag: 'Devices',
      summary: 'Get the chain of signing keys: each key is introduced by the previous one',
      answers: { 200: { description: 'Compact JWS, oldest first.', body: signingKeys } },
      handle: async () => ({ status: 200, body: { introductions: [...(deps.keys.introductions ?? [])] } }),
    }),
    edgeOperation({
      method: 'GET',
      path: '/instances/:instanceId/policy',
      principals: ['DEVICE'],
      params: inInstance,
      query: enginesQuery,
      conditional: true,
      id: 'getPolicy',
      tag: 'Devices',
      summary: 'Get the signed rules of an instance',
      description:
        'The query states the engine of the agent. The cloud refuses if one side is too old for the other one, and names that side.',
      answers: {
        200: {
          description: 'A compact JWS. The ETag is the revision.',
          body: compactJws,
          mediaType: POLICY_MEDIA_TYPE,
        },
        304: { description: 'The revision in If-None-Match is the newest.' },
      },
      errors: ['INSTANCE_NOT_IN_TOKEN', 'NOT_FOUND', 'AGENT_ENGINE_OLD', 'CLOUD_ENGINE_OLD'],
      handle: async ({ params, query, headers: { 'if-none-match': known } }) => {
        const agent = { version: query.engine, oldest: query.oldestEngine }
        const isNamed = parseTags(known ?? '')
        const isKnown = (revision: number): boolean => isNamed?.(policyTag(revision)) === true
        const found = await signedPolicy(deps, params.instanceId, isKnown, agent)
        if (found === undefined) throw noInstance(params.instanceId)
        const headers = { 'cache-control': 'no-cache' }
        if (found === null) return { status: 304, headers }
        return { status: 200, headers: { ...headers, etag: policyTag(found.revision) }, text: found.document }
      },
    }),
  ]
}

function syncOperations(deps: OwnDevice): readonly Operation[] {
  const gate = new SyncGate(deps.present)
  const rarely = new Rarely(() => performance.now())
  const [turns, longTurns] = [new Turns(SEGMENTS_AT_ONCE), new Turns(LONG_SEGMENTS_AT_ONCE)]
  return [
    edgeOperation({
      ...own,
      path: '/devices/:deviceId/attach',
      body: attachRequest,
      id: 'attach',
      summary: 'Start the next epoch of a device',
      errors: ['NOT_FOUND', 'ATTACH_TOO_OFTEN', 'DEVICE_TERMINATED'],
      handle: async ({ params, body }) => {
        const document = await attach(deps, params.deviceId, body)
        return answerNow(deps, params.deviceId, body.nonce, document)
      },
    }),
    edgeOperation({
      ...own,
      path: '/devices/:deviceId/sync',
      bodyMax: SYNC_BODY_BYTES_MAX,
      gzip: true,
      body: syncRequest,
      id: 'sync',
      summary: 'Deliver a segment of the ledger, and get grants',
      description: 'The body can be compressed with Content-Encoding gzip.',
      errors: ['SEGMENT_REJECTED', 'GRANTS_FORGOTTEN', 'SYNC_TOO_OFTEN'],
      enter: ({ deviceId }, response) => gate.enter(deviceId, response),
      handle: async ({ principal: { device }, body: { segment, nonce, proofs }, log }) => {
        const onOutcome = (outcome: SyncOutcome, opened: number): void => {
          gate.count(device.id, outcome, { bytes: segment.length, opened })
          deps.onOutcome?.(outcome, opened)
        }
        const work = () => sync({ ...deps, onOutcome }, device, segment, proofs)
        const merged = await (declaredTextLength(segment) > LONG_SEGMENT_BYTES ? longTurns : turns).take(work)
        if (!merged.accepted) {
          const details = { deviceId: device.id, ...merged.details }
          log.warn(details, 'a segment was refused')
          if (merged.answer !== undefined) return withTime(deps, merged, nonce, merged.answer)
          throw new CodedError('SEGMENT_REJECTED', merged.problem, { details })
        }
        const { unbilled } = merged
        if (unbilled !== null) {
          rarely.log(device.id, (segments) =>
            log.warn({ deviceId: device.id, ...unbilled, segments }, 'entries are not billed'),
          )
        }
        return withTime(deps, merged, nonce, merged.answer)
      },
    }),
  ]
}

function keyOperations(deps: OwnDevice): readonly Operation[] {
  return [
    edgeOperation({
      ...own,
      path: '/devices/:deviceId/keys',
      body: keyChangeRequest,
      id: 'announceDeviceKey',
      summary: 'Announce the next key of a device',
      description: 'Both keys are then accepted. The first call with the next key invalidates the previous one.',
      errors: ['NOT_FOUND', 'DEVICE_KEY_REFUSED'],
      handle: async ({ params: { deviceId }, body }) => {
        const document = await announceKey(deps, deviceId, body.nonce, body.link)
        return answerNow(deps, deviceId, body.nonce, document)
      },
    }),
    edgeOperation({
      ...own,
      path: '/devices/:deviceId/keys/links',
      principals: ['INTRODUCED_DEVICE'],
      body: keyLinksRequest,
      id: 'showDeviceKeyLinks',
      summary: 'Prove a device key that the cloud does not know',
      description: 'For a cloud that was restored from a backup. The token is signed with the newest key.',
      errors: ['NOT_FOUND', 'DEVICE_KEY_REFUSED'],
      handle: async ({ params: { deviceId }, principal, body }) => {
        const document = await showLinks(deps, deviceId, principal.token, body)
        return answerNow(deps, deviceId, body.nonce, document)
      },
    }),
  ]
}

/** Reads the suspension last, so that a new command takes effect at once. */
async function answerNow(deps: OwnDevice, deviceId: string, nonce: string, answer: string): Promise<Answer> {
  const device = await deps.store.read((reader) => reader.edge.devices.get(deviceId))
  if (device === undefined) throw new Error('invariant: a device that has signed its token is known')
  return withTime(deps, device, nonce, answer)
}

/** The time is signed with the answer, so that an old one cannot be attached to another answer. */
async function withTime(
  { keys, now, addresses }: OwnDevice,
  { suspension }: Pick<Device, 'suspension'>,
  nonce: string,
  answer: string,
): Promise<Answer> {
  // A stored suspension also has a name, which devices do not learn.
  const shown = suspension === null ? null : { state: suspension.state, since: suspension.since }
  const { push } = addresses()
  const payload: z.input<typeof signedTime> = { nonce, time: now(), answer: sha256(answer), suspension: shown, push }
  const time = await signDocumentAside('time', JSON.stringify(payload), keys.signer)
  return { status: 200, body: { answer, time } satisfies z.input<typeof signedAnswer> }
}
