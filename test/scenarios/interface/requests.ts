/**
 * Requests for each operation that a device and the cloud both offer: valid, and malformed in every kind. `{instance}`,
 * `{session}` (live) and `{ended}` stand for the ids of each side.
 */
export interface Probe {
  readonly name: string
  readonly method: string
  /** Below the prefix of the service. */
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | Uint8Array | null
}

const UNKNOWN = '64d2028c-ae87-4069-a624-66089d957ef9'

interface Operation {
  readonly name: string
  readonly method: string
  readonly path: string
  readonly body?: Readonly<Record<string, unknown>>
}

const REQUESTER = { type: 'user', value: 'x' }
const ITEMS = [{ item: 'Print', count: 1 }]

const OPERATIONS: readonly Operation[] = [
  {
    name: 'access request',
    method: 'POST',
    path: '/elastic/api/{version}/instances/{instance}/access-request',
    body: { requester: REQUESTER, requestedItems: ITEMS },
  },
  { name: 'open', method: 'POST', path: '/api/{version}/sessions', body: { instanceId: '{instance}' } },
  { name: 'list', method: 'GET', path: '/floating/api/{version}/sessions' },
  { name: 'show', method: 'GET', path: '/api/{version}/sessions/{session}' },
  {
    name: 'request',
    method: 'PUT',
    path: '/floating/api/{version}/sessions/{session}',
    body: { requester: REQUESTER, rollbackOnDeny: true, requestedItems: ITEMS },
  },
  { name: 'heartbeat', method: 'GET', path: '/api/{version}/sessions/{session}/heartbeat' },
  { name: 'close', method: 'DELETE', path: '/api/{version}/sessions/{ended}' },
]

const JSON_TYPE = { 'content-type': 'application/json' }

function pathKinds({ method, path, body }: Operation): readonly Omit<Probe, 'headers'>[] {
  const text = body === undefined ? null : JSON.stringify(body)
  const probe = (name: string, changed: string, otherMethod = method) => ({
    name,
    method: otherMethod,
    path: changed,
    body: otherMethod === method ? text : null,
  })
  const id = /\{(?:instance|session|ended)\}/
  const withId = id.test(path)
    ? [
        probe('an id that is no UUID', path.replace(id, 'no-uuid')),
        probe('an unknown id', path.replace(id, UNKNOWN)),
        probe('an unknown id in capitals', path.replace(id, UNKNOWN.toUpperCase())),
        probe('an unknown id, percent-encoded', path.replace(id, `%36${UNKNOWN.slice(1)}`)),
        probe('an id with a malformed percent', path.replace(id, '%zz')),
        probe('an id with a percent-encoded slash', path.replace(id, 'a%2Fb')),
        probe('an overlong id', path.replace(id, 'a'.repeat(1_100))),
        probe('an empty id', path.replace(id, '')),
        probe('an empty id, by the method PATCH', path.replace(id, ''), 'PATCH'),
      ]
    : []
  return [
    probe('valid', path),
    probe('a trailing slash', `${path}/`),
    probe('two trailing slashes', `${path}//`),
    probe('an unknown query key', `${path}?expand=all`),
    probe('a malformed query', `${path}?%zz=%`),
    probe('a fragment', `${path}#more`),
    probe('a percent-encoded letter of a name', path.replace('sessions', 'sess%69ons').replace('access-', '%61ccess-')),
    probe('a name in capitals', path.replace('/sessions', '/SESSIONS').replace('/access', '/ACCESS')),
    probe('an unknown version', path.replace('{version}', 'v9.9')),
    probe('one more segment', `${path}/more`),
    probe('the method PATCH', path, 'PATCH'),
    probe('the method OPTIONS', path, 'OPTIONS'),
    ...withId,
  ]
}

const BODIES: readonly (readonly [name: string, body: (valid: Readonly<Record<string, unknown>>) => unknown])[] = [
  ['another field', (valid) => ({ ...valid, owner: 'x' })],
  ['an array', (valid) => [valid]],
  ['null', () => null],
  ['a text', () => 'text'],
  ['an empty object', () => ({})],
]

const ITEM_CHANGES: readonly (readonly [name: string, item: Readonly<Record<string, unknown>>])[] = [
  ['a count as text', { item: 'Print', count: '1.0' }],
  ['a count of zero', { item: 'Print', count: 0 }],
  ['a huge count', { item: 'Print', count: 1e30 }],
  ['no item', { count: 1 }],
  ['two versions', { item: 'Print', count: 1, version: '1', requestedVersion: '1' }],
  ['an item that is not rated', { item: 'Scan', count: 1 }],
  ['an item that is too dear', { item: 'Print', count: 1e9 }],
  ['variables', { item: 'Print', count: 1, variables: { size: 1 } }],
]

function bodyKinds({ name: operation, method, path, body = {} }: Operation): readonly Probe[] {
  const text = JSON.stringify(body)
  const raw = (name: string, content: Probe['body'], headers: Probe['headers'] = JSON_TYPE): Probe => ({
    name,
    method,
    path,
    headers,
    body: content,
  })
  const items = ITEM_CHANGES.map(([name, item]) => raw(name, JSON.stringify({ ...body, requestedItems: [item] })))
  const typed = (name: string, type: string) => raw(name, text, { 'content-type': type })
  return [
    ...BODIES.map(([name, change]) => raw(`the body ${name}`, JSON.stringify(change(body)))),
    ...(operation === 'open' ? [] : items),
    raw('no body', null, {}),
    raw('an empty body', ''),
    raw('blanks', '  '),
    raw('half a body', text.slice(0, -1)),
    raw('a byte order mark', `\uFEFF${text}`),
    raw('a body that is not UTF-8', new Uint8Array([0x22, 0xff, 0x22])),
    raw('a body that nests too deeply', '['.repeat(70) + ']'.repeat(70)),
    raw('no media type', text, {}),
    typed('text/plain', 'text/plain'),
    typed('charset=utf-8', 'application/json; charset=utf-8'),
    typed('charset="UTF-8"', 'application/json; charset="UTF-8"'),
    typed('charset=iso-8859-1', 'application/json; charset=iso-8859-1'),
    typed('charset=utf-16', 'application/json;charset=utf-16'),
    typed('a media type in capitals', 'APPLICATION/JSON'),
    typed('another parameter', 'application/json; version=1'),
    typed('a similar media type', 'application/jsonp'),
    typed('a problem type', 'application/problem+json'),
    raw('compressed', text, { ...JSON_TYPE, 'content-encoding': 'gzip' }),
    raw('not compressed, and said so', text, { ...JSON_TYPE, 'content-encoding': 'identity' }),
    // Elsewhere it would have an effect on one side only.
    ...(operation === 'access request' ? [raw('a body of 100 kilobytes', `${text}${' '.repeat(100_000)}`)] : []),
    raw('a body above a megabyte', `${text}${' '.repeat(1_100_000)}`),
  ]
}

function headerKinds({ method, path, body }: Operation): readonly Probe[] {
  const content = body === undefined ? null : JSON.stringify(body)
  const type = content === null ? {} : JSON_TYPE
  return [
    ['an instance header that is no UUID', 'no-uuid'],
    ['an instance header of another instance', UNKNOWN],
  ].map(([name = '', value = '']) => ({
    name,
    method,
    path,
    headers: { ...type, 'x-instance-id': value },
    body: content,
  }))
}

export function probes(): readonly Probe[] {
  const all = OPERATIONS.flatMap((operation): readonly Probe[] => {
    const own = [
      ...pathKinds(operation).map((probe) => ({ ...probe, headers: probe.body === null ? {} : JSON_TYPE })),
      ...headerKinds(operation),
      ...(operation.method === 'GET' ? [] : bodyKinds(operation)),
    ]
    return own.map((probe) => ({ ...probe, name: `${operation.name}: ${probe.name}` }))
  })
  const more: readonly Omit<Probe, 'headers' | 'body'>[] = [
    { name: 'list: an instance that is no UUID', method: 'GET', path: '/api/{version}/sessions?instanceId=no-uuid' },
    { name: 'list: two instances', method: 'GET', path: '/api/{version}/sessions?instanceId={instance}&instanceId=b' },
    { name: 'list: its instance', method: 'GET', path: '/api/{version}/sessions?instanceId={instance}' },
    { name: 'show: an ended session', method: 'GET', path: '/api/{version}/sessions/{ended}' },
    { name: 'heartbeat: an ended session', method: 'GET', path: '/api/{version}/sessions/{ended}/heartbeat' },
    { name: 'nothing: an unknown path', method: 'GET', path: '/api/{version}/nothing' },
    { name: 'nothing: an unknown area', method: 'GET', path: '/other/api/{version}/sessions' },
  ]
  const request = OPERATIONS.find(({ name }) => name === 'request')
  const ofUnknown = { method: 'DELETE', path: `/api/{version}/sessions/${UNKNOWN}`, headers: JSON_TYPE, body: '{' }
  const inEnded = { ...request, path: '/api/{version}/sessions/{ended}', headers: JSON_TYPE }
  return ['v1.0', 'v1.1'].flatMap((version) =>
    [
      ...all,
      ...more.map((probe) => ({ ...probe, headers: {}, body: null })),
      { ...ofUnknown, name: 'close: half a body for an unknown session' },
      { ...inEnded, name: 'request: in an ended session', method: 'PUT', body: JSON.stringify(request?.body) },
    ].map((probe) => ({ ...probe, name: `${version} ${probe.name}`, path: probe.path.replace('{version}', version) })),
  )
}
