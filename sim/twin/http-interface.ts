/**
 * The cloud's HTTP interface for devices, without sockets, whose event sequence a seed cannot control: calls the same
 * use cases with the same checks.
 */
import type { HttpAnswer, HttpRequest } from '../../src/agent/platform/http/exchange.ts'
import { attach } from '../../src/cloud/sync/attach.ts'
import { announceKey, showLinks } from '../../src/cloud/devices/change-device-key.ts'
import { enroll } from '../../src/cloud/devices/enroll.ts'
import { signedPolicy } from '../../src/cloud/policy/policy-document.ts'
import { signTime } from '../../src/cloud/devices/sign-time.ts'
import { sync } from '../../src/cloud/sync/sync.ts'
import { closeSession, heartbeat, heartbeatOfDevice, openSession } from '../../src/cloud/sessions/session-life.ts'
import { attachRequest } from '../../src/protocol/edge/attach.ts'
import { keyChangeRequest, keyLinksRequest } from '../../src/protocol/edge/device-key.ts'
import { enrollmentRequest } from '../../src/protocol/edge/enrollment.ts'
import { syncRequest } from '../../src/protocol/edge/sync.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { TwinProcess } from './twin-process.ts'

const EDGE_URL = 'https://twin.example/edge/api/v1'
const SERVICE_URL = 'https://twin.example/api'

const PUSH_URL = 'mqtts://twin.example'

export const addresses = (hasPush: boolean) => () => ({
  edge: EDGE_URL,
  service: SERVICE_URL,
  push: hasPush ? PUSH_URL : null,
})

export async function answerRequest(twin: TwinProcess, request: HttpRequest, hasPush: boolean): Promise<HttpAnswer> {
  const date = new Date(twin.now()).toUTCString()
  try {
    const answer = await route(twin, request, hasPush)
    return { ...answer, headers: { date, ...answer.headers } }
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    const { code, message, httpStatus, details } = error
    const { retryAfterMs } = details
    const wait = typeof retryAfterMs === 'number' ? { 'retry-after': String(Math.ceil(retryAfterMs / 1000)) } : {}
    return { status: httpStatus, headers: { date, ...wait }, body: JSON.stringify({ message, code }) }
  }
}

async function route(twin: TwinProcess, request: HttpRequest, hasPush: boolean): Promise<HttpAnswer> {
  const { method, url, headers } = request
  const path = new URL(url).pathname
  const body: unknown = request.body === null ? null : JSON.parse(request.body)
  if (path === '/edge/api/v1/enrollments') {
    const token = (headers['authorization'] ?? '').replace('Bearer ', '')
    return json(200, await enroll({ ...twin, addresses: addresses(hasPush) }, token, enrollmentRequest.parse(body)))
  }

  const links = /^\/edge\/api\/v1\/devices\/([^/]+)\/keys\/links$/.exec(path)?.[1]
  if (links !== undefined) return shownLinks(twin, links, headers['authorization'] ?? '', body)

  const principal = await twin.authenticator.authenticate(headers['authorization'], twin.now())
  if (principal.kind !== 'DEVICE') throw new CodedError('ACCESS_KIND_WRONG', 'This operation requires a device token.')
  const { deviceId, instances } = principal
  const [, area, , , ...names] = path.split('/')
  if (area === 'edge' && names[0] === 'instances') return policy(twin, names[1] ?? '', request)
  if (area === 'edge') {
    if (names[1] !== deviceId) throw new CodedError('ACCESS_KIND_WRONG', 'The path names another device.')
    if (names[2] === 'keys') return announced(twin, deviceId, body)
    return names[2] === 'attach' ? attached(twin, deviceId, body) : synced(twin, deviceId, body)
  }

  const [, , , , sessionId, last] = path.split('/')
  const instanceId = headers['x-instance-id'] ?? ''
  if (!instances.has(instanceId)) throw new CodedError('INSTANCE_NOT_IN_TOKEN', 'It is of another instance.')
  const parts = { ...twin, sessionIntervalMs: twin.terms.sessionIntervalMs }
  const belongs = (session: { readonly instanceId: string }): void => {
    if (session.instanceId !== instanceId) throw new CodedError('INSTANCE_NOT_IN_TOKEN', 'It is of another instance.')
  }
  if (sessionId === undefined) {
    const opened = await openSession(
      parts,
      { instanceId, deviceId, opening: headers['idempotency-key'] ?? null },
      twin.now(),
    )
    return json(200, { sessionId: opened.id })
  }
  const { operable, session } =
    method === 'GET' && last === 'heartbeat'
      ? await heartbeat(parts, sessionId, belongs, twin.now())
      : await closeSession(parts, sessionId, belongs, twin.now())
  if (operable) return { status: 204, headers: {}, body: '' }
  return json(409, { message: `Session is ${session.state}`, code: 'SESSION_NOT_OPERABLE' })
}

async function policy(twin: TwinProcess, instanceId: string, { url, headers }: HttpRequest): Promise<HttpAnswer> {
  const known = /^"(\d+)"$/.exec(headers['if-none-match'] ?? '')?.[1]
  const { searchParams: query } = new URL(url)
  const agent = { version: Number(query.get('engine')), oldest: Number(query.get('oldestEngine')) }
  const found = await signedPolicy(twin, instanceId, known === undefined ? null : Number(known), agent)
  if (found === undefined) throw new CodedError('NOT_FOUND', 'There is no such instance.')
  if (found === null) return { status: 304, headers: {}, body: '' }
  return { status: 200, headers: { etag: `"${found.revision}"` }, body: found.document }
}

async function attached(twin: TwinProcess, deviceId: string, body: unknown): Promise<HttpAnswer> {
  const order = attachRequest.parse(body)
  const answer = await twin.defects.attach(attach)(twin, deviceId, order)
  return said(twin, deviceId, order.nonce, answer)
}

const onKeyReplaced = (): void => undefined

async function announced(twin: TwinProcess, deviceId: string, body: unknown): Promise<HttpAnswer> {
  const { nonce, link } = keyChangeRequest.parse(body)
  return said(twin, deviceId, nonce, await announceKey(twin, deviceId, nonce, link))
}

async function shownLinks(twin: TwinProcess, deviceId: string, bearer: string, body: unknown): Promise<HttpAnswer> {
  const request = keyLinksRequest.parse(body)
  const token = bearer.replace('Bearer ', '')
  return said(twin, deviceId, request.nonce, await showLinks({ ...twin, onKeyReplaced }, deviceId, token, request))
}

async function synced(twin: TwinProcess, deviceId: string, body: unknown): Promise<HttpAnswer> {
  const { segment, nonce, proofs } = syncRequest.parse(body)
  const device = await twin.store.read((reader) => reader.edge.devices.get(deviceId))
  if (device === undefined) throw new CodedError('NOT_FOUND', 'There is no such device.')
  const deps: Parameters<typeof sync>[0] = {
    ...twin,
    heartbeat: (tx, { id }, ...rest) => heartbeatOfDevice(tx, id, ...rest),
  }
  const taken = await twin.defects.sync(sync)(deps, device, segment, proofs)
  if (taken.taken || taken.answer !== undefined) return said(twin, deviceId, nonce, taken.answer ?? '')
  throw new CodedError('SEGMENT_REJECTED', taken.problem, { details: { ...taken.details } })
}

async function said(twin: TwinProcess, deviceId: string, nonce: string, answer: string): Promise<HttpAnswer> {
  const suspension = (await twin.store.read((reader) => reader.edge.devices.get(deviceId)))?.suspension ?? null
  return json(200, { answer, time: await signTime(twin.keys, { nonce, answer, time: twin.now(), suspension }) })
}

function json(status: number, body: unknown): HttpAnswer {
  return { status, headers: {}, body: JSON.stringify(body) }
}
