import { expect, test } from 'vitest'
import { createCloudHttp } from '../../../../src/agent/platform/http/cloud-client.ts'
import type { HttpAnswer, HttpRequest } from '../../../../src/agent/platform/http/exchange.ts'
import type { Identity } from '../../../../src/agent/ledger/journal.ts'
import { CodedError } from '../../../../src/protocol/errors.ts'
import { DEVICE, EDGE, INSTANCE, json, refusal, SERVICE } from '../../sync/fake-cloud.ts'

const device: Identity = {
  deviceId: DEVICE,
  keyId: 'k',
  instanceIds: [INSTANCE],
  trustedKeys: [],
  edgeUrl: `${EDGE}/`,
  serviceUrl: SERVICE,
  pushUrl: null,
  suspension: null,
}
const signal = new AbortController().signal
const NOW = Date.UTC(2026, 0, 1)
const date = new Date(NOW).toUTCString()

const broken = (network: string) => new CodedError('CLOUD_UNREACHABLE', 'no answer', { details: { network } })

/** A cloud that gives these answers, one after another, the last one for ever. */
function answering(...answers: (HttpAnswer | CodedError)[]) {
  const requests: HttpRequest[] = []
  const pauses: number[] = []
  const clocks: number[] = []
  const cloud = createCloudHttp({
    exchange: async (request) => {
      requests.push(request)
      const answer = answers.length > 1 ? answers.shift() : answers[0]
      if (answer === undefined) throw new Error('an answer is there')
      if (answer instanceof CodedError) throw answer
      return answer
    },
    tokens: {
      token: async () => `token ${clocks.length}`,
      followCloudClock: (now) => void clocks.push(now),
    },
    pause: async (ms) => void pauses.push(ms),
    fraction: () => 0.5,
  })
  return { cloud, requests, pauses, clocks }
}

const failed = async (answer: Promise<unknown>): Promise<CodedError> =>
  answer.then(
    () => {
      throw new Error('it succeeded')
    },
    (error: unknown) => error as CodedError,
  )

const SIGNED = { answer: 'a', time: 't' }

test('each call has its path, and the token of the device', async () => {
  const { cloud, requests } = answering(json(200, SIGNED))
  await cloud.attach(device, { nonce: 'n', bootId: 'b', above: 0, acknowledged: 0, backlog: 0, software: 's' }, signal)
  await cloud.sync(device, { segment: 'x', nonce: 'n' }, signal)
  expect(requests.map(({ method, url }) => `${method} ${url}`)).toEqual([
    `POST ${EDGE}/devices/${DEVICE}/attach`,
    `POST ${EDGE}/devices/${DEVICE}/sync`,
  ])
  expect(requests[1]).toMatchObject({
    headers: { authorization: 'Bearer token 0', 'content-type': 'application/json' },
    body: '{"segment":"x","nonce":"n"}',
  })
})

test('a policy is requested with the revision in force and the engine, and arrives as it was signed', async () => {
  const document = { status: 200, headers: {}, body: 'a.b.c\n' }
  const asked = { instanceId: INSTANCE, engine: { version: 4, oldest: 3 } }
  const { cloud, requests } = answering(document, { status: 304, headers: {}, body: '' })
  expect(await cloud.policy(device, { ...asked, knownRevision: 0 }, signal)).toEqual({
    kind: 'DOCUMENT',
    document: 'a.b.c',
  })
  expect(await cloud.policy(device, { ...asked, knownRevision: 7 }, signal)).toEqual({ kind: 'UNCHANGED' })
  expect(requests[0]?.url).toBe(`${EDGE}/instances/${INSTANCE}/policy?engine=4&oldestEngine=3`)
  expect(requests[0]?.headers['if-none-match']).toBeUndefined()
  expect(requests[1]?.headers['if-none-match']).toBe('"7"')
})

test('a session is an ordinary session of the service API', async () => {
  const sessionId = '00000000-0000-4000-8000-000000000001'
  const { cloud, requests } = answering(json(200, { sessionId, more: 'fields' }), {
    status: 204,
    headers: {},
    body: '',
  })
  expect(await cloud.openSession(device, INSTANCE, 'opening', signal)).toBe(sessionId)
  expect(await cloud.heartbeat(device, INSTANCE, sessionId, signal)).toEqual({ kind: 'ALIVE' })
  await cloud.closeSession(device, INSTANCE, sessionId, signal)
  expect(requests.map(({ method, url, headers }) => [method, url, headers['x-instance-id']])).toEqual([
    ['POST', `${SERVICE}/v1.1/sessions`, INSTANCE],
    ['GET', `${SERVICE}/v1.1/sessions/${sessionId}/heartbeat`, INSTANCE],
    ['DELETE', `${SERVICE}/v1.1/sessions/${sessionId}`, INSTANCE],
  ])
  expect(requests[0]?.body).toBe(JSON.stringify({ instanceId: INSTANCE }))
  expect(requests.map(({ headers }) => headers['idempotency-key'])).toEqual(['opening', undefined, undefined])
})

test.each([
  ['Session is LOCKED', { kind: 'LOCKED' }],
  ['Session is TERMINATED', { kind: 'ENDED', state: 'TERMINATED' }],
  ['Session is FAILED', { kind: 'ENDED', state: 'FAILED' }],
  ['Session is DISCONNECTED', { kind: 'ENDED', state: 'DISCONNECTED' }],
  ['something else', { kind: 'ENDED', state: 'TERMINATED' }],
])('a heartbeat that is refused with "%s" means %o', async (message, state) => {
  const { cloud } = answering(refusal(409, 'SESSION_NOT_OPERABLE', message))
  expect(await cloud.heartbeat(device, INSTANCE, 's', signal)).toEqual(state)
})

test.each([
  ['Session is LOCKED', { kind: 'LOCKED' }],
  ['session was terminated', { kind: 'ENDED', state: 'TERMINATED' }],
  ['current state: disconnected', { kind: 'ENDED', state: 'DISCONNECTED' }],
])('a heartbeat that is refused without a code, with "%s", means %o', async (message, state) => {
  const { cloud } = answering(json(409, { message }))
  expect(await cloud.heartbeat(device, INSTANCE, 's', signal)).toEqual(state)
})

test('a heartbeat is accepted only by 204', async () => {
  const { cloud } = answering({ status: 200, headers: {}, body: '<html>Sign in to this network</html>' })
  expect((await failed(cloud.heartbeat(device, INSTANCE, 's', signal))).code).toBe('ANSWER_UNEXPECTED')
})

test('a heartbeat of a session that the cloud does not know ends it', async () => {
  const { cloud } = answering(json(404, { message: 'There is no such session.' }))
  expect(await cloud.heartbeat(device, INSTANCE, 's', signal)).toEqual({ kind: 'ENDED', state: 'UNKNOWN' })
})

test('a heartbeat of a session that the cloud has for another instance ends it', async () => {
  const { cloud } = answering(refusal(403, 'INSTANCE_NOT_IN_TOKEN', 'of another instance'))
  expect(await cloud.heartbeat(device, INSTANCE, 's', signal)).toEqual({ kind: 'ENDED', state: 'UNKNOWN' })
})

test('closing a session that is gone already, or is of another instance, is no failure', async () => {
  const isOther = refusal(403, 'INSTANCE_NOT_IN_TOKEN', 'of another instance')
  const hasEnded = json(409, { message: 'Session is TERMINATED' })
  for (const answer of [
    json(404, { message: 'gone' }),
    isOther,
    refusal(409, 'SESSION_NOT_OPERABLE', 'gone'),
    hasEnded,
  ]) {
    const { cloud, requests } = answering(answer)
    await cloud.closeSession(device, INSTANCE, 's', signal)
    expect(requests.map(({ method }) => method)).toEqual(['DELETE'])
  }
})

test.each([
  ['OPERATION_UNKNOWN', json(404, { code: 'OPERATION_UNKNOWN', message: 'No operation GET at this path.' })],
  ['ANSWER_UNEXPECTED', { status: 404, headers: {}, body: '<html>Not found</html>' }],
  ['ANSWER_UNEXPECTED', { status: 409, headers: {}, body: '<html>Session is TERMINATED</html>' }],
  ['CONFLICT', json(409, { message: 'The backend is updating' })],
  ['DEVICE_LOCKED', refusal(409, 'DEVICE_LOCKED', 'The device is locked')],
])('a response that does not say that it has ended (%s) does not end or close a session', async (code, answer) => {
  const { cloud } = answering(answer)
  expect((await failed(cloud.heartbeat(device, INSTANCE, 's', signal))).code).toBe(code)
  expect((await failed(cloud.closeSession(device, INSTANCE, 's', signal))).code).toBe(code)
})

test.each([429, 408, 500, 502, 503, 504])(
  '%i is a temporary failure with the wait that Retry-After asks for',
  async (status) => {
    const seconds = { ...json(status, { message: 'busy' }), headers: { 'retry-after': '17' } }
    const later = { ...seconds, headers: { 'retry-after': new Date(NOW + 30_000).toUTCString(), date } }
    const silent = { ...seconds, headers: { 'retry-after': 'soon' } }
    for (const [answer, retryAfterMs] of [
      [seconds, 17_000],
      [later, 30_000],
      [silent, 0],
    ] as const) {
      const { cloud, requests } = answering(answer)
      expect(await failed(cloud.sync(device, { segment: 'x', nonce: 'n' }, signal))).toMatchObject({
        code: 'CLOUD_UNREACHABLE',
        details: { retryAfterMs },
      })
      expect(requests).toHaveLength(1)
    }
  },
)

test.each([
  [json(503, { code: 'NOT_RECORDED', message: 'The disk is full.' }), ' 503 (NOT_RECORDED): The disk is full.'],
  [json(503, { code: 'NOT_RECORDED', message: 'a\u001b[2J\nb' }), ' 503 (NOT_RECORDED): a[2Jb'],
  [json(503, { message: 'busy' }), ' 503.'],
])('a temporary failure has the message of the cloud', async (answer, end) => {
  const { cloud } = answering(answer)
  const { message } = await failed(cloud.sync(device, { segment: 'x', nonce: 'n' }, signal))
  expect(message).toBe(`The cloud responded with HTTP status${end}`)
})

test('a refusal keeps the code of the cloud; without a code, the status decides', async () => {
  const refusals: [HttpAnswer, string][] = [
    [json(403, { code: 'DEVICE_REVOKED', message: 'revoked' }), 'DEVICE_REVOKED'],
    [json(422, { code: 'SEGMENT_REJECTED', message: 'no' }), 'SEGMENT_REJECTED'],
    [json(503, { code: 'GRANTS_FORGOTTEN', message: 'no' }), 'GRANTS_FORGOTTEN'],
    [json(403, { message: 'no' }), 'ACCESS_KIND_WRONG'],
    [json(404, { message: 'no' }), 'NOT_FOUND'],
    [json(404, { code: 'NO_SUCH_CODE', message: 'no' }), 'NOT_FOUND'],
    [{ status: 403, headers: {}, body: '<html>Sign in to the hotel</html>' }, 'ANSWER_UNEXPECTED'],
    [{ status: 302, headers: { location: 'http://hotel' }, body: '' }, 'ANSWER_UNEXPECTED'],
    [{ status: 200, headers: {}, body: '<html>Sign in to the hotel</html>' }, 'ANSWER_UNEXPECTED'],
    [json(200, { ...SIGNED, more: 1 }), 'ANSWER_UNEXPECTED'],
  ]
  for (const [answer, code] of refusals) {
    const { cloud } = answering(answer)
    expect((await failed(cloud.sync(device, { segment: 'x', nonce: 'n' }, signal))).code).toBe(code)
  }
})

test('a connection that breaks is tried again at once, a few times, with pauses that grow', async () => {
  const { cloud, requests, pauses } = answering(broken('ECONNRESET'))
  expect((await failed(cloud.sync(device, { segment: 'x', nonce: 'n' }, signal))).code).toBe('CLOUD_UNREACHABLE')
  expect(requests).toHaveLength(3)
  expect(pauses).toEqual([100, 200])
  const healing = answering(broken('ECONNREFUSED'), json(200, SIGNED))
  expect(await healing.cloud.sync(device, { segment: 'x', nonce: 'n' }, signal)).toEqual(SIGNED)
})

test('a request is not repeated without a network, or if it could count twice', async () => {
  for (const network of ['ETIMEDOUT', 'ENOTFOUND', 'ABORTED', 'DEPTH_ZERO_SELF_SIGNED_CERT']) {
    const { cloud, requests } = answering(broken(network))
    await failed(cloud.sync(device, { segment: 'x', nonce: 'n' }, signal))
    expect(requests).toHaveLength(1)
  }
  const { cloud, requests } = answering(broken('ECONNRESET'))
  await failed(cloud.openSession(device, INSTANCE, 'opening', signal))
  expect(requests).toHaveLength(1)
})

test('a token that is not in time is made once more, by the clock of the response', async () => {
  const refused = { ...json(401, { code: 'TOKEN_NOT_IN_TIME', message: 'no' }), headers: { date } }
  const { cloud, requests, clocks } = answering(refused, json(200, SIGNED))
  expect(await cloud.sync(device, { segment: 'x', nonce: 'n' }, signal)).toEqual(SIGNED)
  expect(clocks).toEqual([NOW])
  expect(requests.map(({ headers }) => headers['authorization'])).toEqual(['Bearer token 0', 'Bearer token 1'])

  const stubborn = answering(refused)
  expect((await failed(stubborn.cloud.sync(device, { segment: 'x', nonce: 'n' }, signal))).code).toBe(
    'TOKEN_NOT_IN_TIME',
  )
  expect(stubborn.requests).toHaveLength(2)
  const undated = answering({ ...refused, headers: {} })
  await failed(undated.cloud.sync(device, { segment: 'x', nonce: 'n' }, signal))
  expect(undated.requests).toHaveLength(1)
  const other = answering({ ...json(401, { code: 'TOKEN_INVALID', message: 'no' }), headers: { date } })
  await failed(other.cloud.sync(device, { segment: 'x', nonce: 'n' }, signal))
  expect(other.requests).toHaveLength(1)
})
