// Every client against a server that breaks HTTP or the API: all behave alike, and no invalid response is a grant.
import { spawnSync } from 'node:child_process'
import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { connect } from '../../sdk/node/src/index.ts'
import { Driver, LANGUAGES, type Language, missingTool } from './driver.ts'

/** Sends what it wants to a connection for its request. @param number of the request of this client, from 1 */
type Script = (socket: Socket, number: number, request: string, client: string) => void

const directory = mkdtempSync(join(tmpdir(), 'tallygate-wire-'))

let script: Script = () => undefined

/** A client with a server for it alone. */
class Wire {
  readonly name: string
  readonly driver: Driver
  readonly socket: string
  readonly #command: readonly string[]
  readonly #env: Readonly<Record<string, string>>
  requests = 0
  connections = 0
  readonly #sockets = new Set<Socket>()
  readonly #server: Server

  private constructor(language: Language, command: readonly string[]) {
    this.name = language.name
    this.socket = join(directory, `${language.name.replaceAll(' ', '-')}.sock`)
    this.#server = createServer((connection) => this.#serve(connection)).listen(this.socket)
    const env = { TALLYGATE_SOCKET: this.socket, INSTANCE: '64d2028c-ae87-4069-a624-66089d957ef9', PATIENCE_MS: '100' }
    this.#env = { ...language.env, ...env }
    this.#command = command
    this.driver = new Driver(command, this.#env)
  }

  /** A patient client of a user without permission to connect, also if root runs the test. */
  unprivileged(): Driver {
    chmodSync(this.socket, 0)
    const withoutRights =
      process.getuid?.() === 0 ? ['setpriv', '--bounding-set', '-dac_override,-dac_read_search'] : []
    return new Driver([...withoutRights, ...this.#command], { ...this.#env, PATIENCE_MS: '60000' })
  }

  /** Another client, with some other variables. */
  other(env: Readonly<Record<string, string | undefined>>): Driver {
    return new Driver(this.#command, { ...this.#env, ...env })
  }

  static async start(language: Language): Promise<Wire> {
    return new Wire(language, await language.build(directory))
  }

  /** Ends every connection, so that the next test begins with a new one. */
  reset(): void {
    this.requests = this.connections = 0
    for (const socket of this.#sockets) socket.destroy()
    this.#sockets.clear()
  }

  /** Connections that neither side has closed. */
  get open(): number {
    return this.#sockets.size
  }

  end(): void {
    this.driver.kill()
    this.reset()
    this.#server.close()
  }

  #serve(connection: Socket): void {
    this.#sockets.add(connection)
    this.connections += 1
    let text = ''
    connection.on('error', () => undefined).on('close', () => this.#sockets.delete(connection))
    connection.on('data', (bytes) => {
      text += bytes.toString()
      const [head = ''] = text.split('\r\n\r\n', 1)
      const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0)
      if (text.length < head.length + 4 + length) return
      this.requests += 1
      script(connection, this.requests, text, this.name)
      text = ''
    })
  }
}

const wires: Wire[] = []

beforeAll(async () => {
  const found = LANGUAGES.filter((language) => missingTool(language) === undefined)
  wires.push(...(await Promise.all(found.map((language) => Wire.start(language)))))
}, 120_000)

afterAll(() => {
  for (const wire of wires) wire.end()
  rmSync(directory, { recursive: true })
})

beforeEach(() => {
  for (const wire of wires) wire.reset()
})

/** The results of the commands, and that of each client whose results differ from the expected ones. */
async function all(commands: readonly string[], expected: readonly string[]): Promise<void> {
  const results = await Promise.all(
    wires.map(async ({ name, driver }) => {
      const lines: string[] = []
      for (const command of commands) lines.push(...(await driver.do(command)))
      return [name, lines] as const
    }),
  )
  expect(results).toEqual(wires.map(({ name }) => [name, expected]))
}

const REQUEST = 'access anna 1.0 1 1'
const GRANTED = 'granted 1001 0.85 -'
const REFUSED = 'error TallygateError BAD_REQUEST no'
const UNEXPECTED = 'error TallygateError ANSWER_UNEXPECTED no'
/** The last word: the message says that the agent limits its connections. */
const UNREACHABLE = 'error AgentUnreachable AGENT_UNREACHABLE later connections'

function http(
  body: string,
  { status = '200 OK', headers = '', length = String(Buffer.byteLength(body)) } = {},
): string {
  return `HTTP/1.1 ${status}\r\nContent-Length: ${length}\r\n${headers}\r\n${body}`
}

const item = {
  item: 'LaserCut',
  version: '1.0',
  count: 1,
  status: { code: '1001', description: 'Granted' },
  totalTokensCharged: 0.85,
}

/** A response with one item. */
const answer = (fields: object = {}, ofItem: object = {}): string =>
  JSON.stringify({ correlationId: 'c0ffee', requestedItems: [{ ...item, ...ofItem }], ...fields })
const BODY = answer()
const refusal = JSON.stringify({ code: 'BAD_REQUEST', message: 'no' })
const overloaded = JSON.stringify({ code: 'OVERLOADED', message: 'wait' })
const opened = http(JSON.stringify({ sessionId: '0e7aa4a2-6d1c-4a49-8d4f-0c7d7c0a2f11' }))

describe('a response that every client accepts', () => {
  it.each([
    [
      'after an informational response',
      `HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n${http(BODY)}`,
    ],
    ['in HTTP/1.0', http(BODY).replace('1.1', '1.0')],
    ['without a reason', http(BODY, { status: '200' })],
    ['with a repeated name, whose last value counts', http(BODY.replace('{', '{"requestedItems":[],'))],
    ['with characters outside ASCII', http(answer({}, { status: { code: '1001', description: 'é\ud83d\ude00' } }))],
  ])('%s', async (_, text) => {
    script = (socket) => void socket.write(text)
    await all([REQUEST, REQUEST], [GRANTED, GRANTED])
  })

  it('with tokens that no double can hold, in all languages that can', async () => {
    script = (socket) => void socket.write(http(BODY.replace('0.85', '9007199254740.993001')))
    for (const { name, driver } of wires) {
      const tokens = name === 'Node' ? '9007199254740.992' : '9007199254740.993001'
      expect([name, await driver.do(REQUEST)]).toEqual([name, [`granted 1001 ${tokens} -`]])
    }
  })
})

describe('a response that is refused at once', () => {
  it.each([
    ['without a length', `HTTP/1.1 200 OK\r\n\r\n${BODY}`],
    [
      'in chunks',
      `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${BODY.length.toString(16)}\r\n${BODY}\r\n0\r\n\r\n`,
    ],
    ['without a body', 'HTTP/1.1 204 No Content\r\n\r\n'],
    ['without a body, and with a length', 'HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n'],
    [
      'that points elsewhere',
      http('', { status: '307 Temporary Redirect', headers: 'Location: http://localhost/x\r\n' }),
    ],
    ['of a server error with the body of a grant', http(BODY, { status: '500 Internal Server Error' })],
    ['of a proxy', http('<html>', { status: '502 Bad Gateway' })],
    ['that ends early', http(BODY.slice(0, -1))],
    ['that ends within an array', http(BODY.slice(0, -2))],
    ['with more behind it', http(`${BODY}x`)],
    ['with a byte order mark', http(`\ufeff${BODY}`)],
    ['with a number as code', http(answer({}, { status: { code: 1001, description: '' } }))],
    ['with an empty code', http(answer({}, { status: { code: '', description: '' } }))],
    ['with a short code', http(answer({}, { status: { code: '1', description: '' } }))],
    ['with a long code', http(answer({}, { status: { code: '10010', description: '' } }))],
    ['without a status', http(answer({}, { status: undefined }))],
    ['without a description', http(answer({}, { status: { code: '1001' } }))],
    ['without tokens', http(answer({}, { totalTokensCharged: undefined }))],
    ['without a number of tokens', http(answer({}, { totalTokensCharged: 'many' }))],
    ['without a correlation id', http(answer({ correlationId: undefined }))],
    ['without the name of the item', http(answer({}, { item: undefined }))],
    ['with an item too many', http(answer({ requestedItems: [item, item] }))],
    ['with nothing for an item', http(answer({ requestedItems: [null] }))],
    ['of an error without a message', http('{"code":"BAD_REQUEST"}', { status: '400 Bad Request' })],
    ['of an error whose code is a number', http('{"code":5,"message":"no"}', { status: '400 Bad Request' })],
  ])('%s', async (_, text) => {
    script = (socket) => void socket.write(text)
    await all([REQUEST], [UNEXPECTED])
    expect(wires.map(({ requests }) => requests)).toEqual(wires.map(() => 1))
  })

  it('if it is larger than any response of an agent', async () => {
    script = (socket) => void socket.write(http(answer({ more: 'x'.repeat(2 ** 24) })))
    await all([REQUEST], [UNEXPECTED])
  }, 60_000)

  it('if it nests without measure, except in Node, which can read it', async () => {
    script = (socket) =>
      void socket.write(http(BODY.replace('{', `{"deep":${'['.repeat(12_000)}${']'.repeat(12_000)},`)))
    for (const { name, driver } of wires)
      expect([name, await driver.do(REQUEST)]).toEqual([name, [name === 'Node' ? GRANTED : UNEXPECTED]])
  })
})

it.each([
  ['switches protocols', 'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n'],
  ['is cut', http(BODY, { length: '5000' })],
  ['has a negative length', http(BODY, { length: '-5' })],
  ['has a length with a sign', http(BODY, { length: `+${BODY.length}` })],
  ['has a length of words', http(BODY, { length: 'abc' })],
  ['has a length of 5,000 digits', http(BODY, { length: '9'.repeat(5_000) })],
  ['has two lengths', http(BODY, { headers: 'Content-Length: 3\r\n' })],
  ['has a status of words', http(BODY, { status: 'abc OK' })],
  ['has a status of four digits', http(BODY, { status: '2000 OK' })],
  ['has endless headers', http(BODY, { headers: `X: ${'a'.repeat(100_000)}\r\n` })],
  ['is in another protocol', 'SSH-2.0-OpenSSH_9\r\n'],
  ['ends its lines without CR', http(BODY).replaceAll('\r\n', '\n')],
  ['ends one header without CR', http(BODY, { headers: 'X: y\n' })],
  ['has a CR within a header', http(BODY, { headers: 'X: y\rZ: z\r\n' })],
  ['has a NUL within a header', http(BODY, { headers: 'X: y\0z\r\n' })],
  ['has a header without a name', http(BODY, { headers: ': y\r\n' })],
  ['has a header without a colon', http(BODY, { headers: 'X\r\n' })],
  ['folds a header', http(BODY, { headers: 'X: y\r\n z\r\n' })],
  ['ends its head without CR', http(BODY).replace('\r\n\r\n', '\n\n')],
])('every client repeats the request if the response %s', async (_, text) => {
  script = (socket) => void socket.end(text)
  await all([REQUEST, 'open'], [UNREACHABLE, UNREACHABLE])
  for (const { name, requests } of wires) expect([name, requests > 1]).toEqual([name, true])
})

it('no client takes a response that answers no request for the answer to its next one', async () => {
  script = (socket, number) =>
    void socket.write(number === 1 ? http(BODY) + http(BODY) : http(refusal, { status: '400 Bad Request' }))
  await all([REQUEST, REQUEST], [GRANTED, REFUSED])
})

it('no client reads on after a response that it cannot understand', async () => {
  script = (socket, number) =>
    void socket.write(
      number === 1 ? `HTTP/1.1 200 OK\r\n\r\n${http(BODY)}` : http(refusal, { status: '400 Bad Request' }),
    )
  await all([REQUEST, REQUEST], [UNEXPECTED, REFUSED])
})

it.each(['Python', 'C'])('the client for %s discards what arrived while its connection was idle', async (name) => {
  const wire = wires.find((each) => each.name === name)
  if (wire === undefined) return
  const late = http(refusal, { status: '408 Request Timeout', headers: 'Connection: close\r\n' })
  const sent: Promise<void>[] = []
  script = (socket) => {
    socket.write(http(BODY))
    sent.push(new Promise((resolve) => setImmediate(() => socket.end(late, resolve))))
  }
  expect(await wire.driver.do(REQUEST)).toEqual([GRANTED])
  await Promise.all(sent)
  expect(await wire.driver.do(REQUEST)).toEqual([GRANTED])
  expect(wire.requests).toBe(2)
})

it('no client takes a denied session request for a grant, whatever its items say', async () => {
  script = (socket, number) => void socket.write(number === 1 ? opened : http(BODY, { status: '403 Forbidden' }))
  await all(['open', 'request anna 1'], ['opened 0e7aa4a2-6d1c-4a49-8d4f-0c7d7c0a2f11', 'refused 1001 0.85 -'])
})

it.each(['5', 'null', '""', '"a b"', '"../x"', '"a\\r\\nX: b"'])(
  'every client refuses a session whose id is %s',
  async (id) => {
    script = (socket) => void socket.write(http(`{"sessionId":${id}}`))
    await all(['open'], [UNEXPECTED])
  },
)

it.each(['{}', '{"state":5}', '{"state":""}'])('every client refuses the state of a session in %s', async (body) => {
  script = (socket, number) => void socket.write(number === 1 ? opened : http(body))
  await all(['open', 'state'], ['opened 0e7aa4a2-6d1c-4a49-8d4f-0c7d7c0a2f11', UNEXPECTED])
})

it.each(['{}', '[]', 'text', '{"instances":7}'])('every client refuses offers in %s', async (body) => {
  script = (socket) => void socket.write(http(body))
  await all(['offers'], [UNEXPECTED])
})

it.each([
  ['Retry-After: 1\r\n', 'later'],
  ['Retry-After: soon\r\n', 'no'],
  ['Retry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n', 'no'],
  ['', 'no'],
])('every client repeats a request only if the agent says when: %j', async (headers, retry) => {
  script = (socket) => void socket.write(http(overloaded, { status: '503 Service Unavailable', headers }))
  await all([REQUEST], [`error TallygateError OVERLOADED ${retry}`])
  for (const { name, requests } of wires) expect([name, requests > 1]).toEqual([name, retry === 'later'])
})

it('every client gives up on a bound session that ends whenever its response is lost', async () => {
  const gone = http('{"code":"NOT_FOUND","message":"no session"}', { status: '404 Not Found' })
  script = (socket, number, request) => {
    if (request.startsWith('GET')) socket.write(gone)
    else if (number % 3 === 1) socket.destroy()
    else socket.write(opened)
  }
  await all(['open bound'], ['error SessionEnded SESSION_ENDED no'])
})

it('every client ends a request whose response takes forever', async () => {
  const timers: NodeJS.Timeout[] = []
  onTestFinished(() => timers.forEach(clearInterval))
  script = (socket) => {
    socket.write(http('', { length: '5000' }))
    timers.push(setInterval(() => socket.write(' '), 100))
  }
  await all([REQUEST], [UNREACHABLE])
}, 90_000)

it('in Python, the next request after an interrupted one has another UUID', async ({ skip }) => {
  const wire = wires.find(({ name }) => name === 'Python')
  if (wire === undefined) return skip()
  const names: (string | undefined)[] = []
  script = (socket, number, request) => {
    names.push(/x-tallygate-session: (\S+)/i.exec(request)?.[1])
    if (number > 1) socket.write(http(BODY))
  }
  expect(await wire.driver.do('interrupt anna')).toEqual(['interrupted'])
  expect(await wire.driver.do(REQUEST)).toEqual([GRANTED])
  expect(new Set(names).size).toBe(2)
})

it('in Python with asyncio, a request ends that is cancelled when its connection ends', async ({ skip }) => {
  const wire = wires.find(({ name }) => name === 'Python with asyncio')
  if (wire === undefined) return skip()
  script = (socket, number) => void (number === 1 && socket.destroy())
  expect(await wire.driver.do('cancel anna')).toEqual(['cancelled'])
})

it('no client keeps more than 16 connections after many requests at a time', async () => {
  const waiting = new Map<string, Socket[]>()
  script = (socket, number, _, client) => {
    const held = waiting.get(client) ?? []
    waiting.set(client, [...held, socket])
    if (number === 40) for (const each of [...held, socket]) each.write(http(BODY))
    if (number > 40) socket.write(http(BODY))
  }
  for (const wire of wires.filter(({ name }) => name !== 'C')) {
    expect([wire.name, await wire.driver.do('burst 40')]).toEqual([wire.name, ['granted 40']])
    await expect.poll(() => wire.open).toBe(16)
    expect([wire.name, await wire.driver.do('access anna 1.0 1 40')]).toEqual([wire.name, Array(40).fill(GRANTED)])
    expect(wire.connections).toBe(40)
  }
})

it('in Go, a call of a session ends with its context while another call waits', async ({ skip }) => {
  const wire = wires.find(({ name }) => name === 'Go')
  if (wire === undefined) return skip()
  const held: Socket[] = []
  script = (socket, number) => void (number === 1 ? socket.write(opened) : held.push(socket))
  await wire.driver.do('open')
  await wire.driver.do('begin anna 1')
  await expect.poll(() => held.length).toBe(1)
  expect(await wire.driver.do('hurry')).toEqual(['late context deadline exceeded'])
  // Without a response, the client would repeat the request in the next test.
  for (const socket of held) socket.write(http(BODY))
})

it.each(['Python', 'Python with asyncio'])('in %s, sends no number that JSON cannot contain', async (name) => {
  const wire = wires.find((each) => each.name === name)!
  expect(await wire.driver.do('access anna 1.0 NaN 1')).toEqual(['error TallygateError BAD_JSON no'])
  expect(wire.requests).toBe(0)
})

it('in Node, reports a mistake of the application at once, and never uses TCP', async () => {
  const socket = join(directory, 'nowhere.sock')
  vi.stubEnv('TALLYGATE_SOCKET', socket)
  onTestFinished(() => void vi.unstubAllEnvs())
  const agent = connect({ socket: '', patienceMs: 0 })
  const anna = { type: 'user', value: 'anna', dictionary: { age: 5n } }
  await expect(agent.access('i', anna, [])).rejects.toMatchObject({ code: 'BAD_JSON', retry: 'no' })
  await expect(agent.offers()).rejects.toThrow(socket)
})

it('in C, a text that is not set is empty, and the agent names it', async ({ skip }) => {
  const wire = wires.find(({ name }) => name === 'C')
  if (wire === undefined) return skip()
  const bodies: (string | undefined)[] = []
  script = (socket, _, request) => {
    bodies.push(request.split('\r\n\r\n')[1])
    socket.write(http(refusal, { status: '400 Bad Request' }))
  }
  using driver = wire.other({ INSTANCE: undefined })
  expect(await driver.do('open')).toEqual([REFUSED])
  expect(bodies).toEqual(['{"instanceId":""}'])
})

it('in Node, refuses a path in place of the options', () => {
  expect(() => connect('/run/other.sock' as never)).toThrow('connect takes an object: connect({ socket: path })')
})

it('every client names the limit if the path of its socket is too long', async () => {
  await Promise.all(
    wires.map(async (wire) => {
      using driver = wire.other({ TALLYGATE_SOCKET: join(directory, 'a'.repeat(108)) })
      expect([wire.name, await driver.do(REQUEST)]).toEqual([
        wire.name,
        ['error AgentUnreachable AGENT_UNREACHABLE later TALLYGATE_SOCKET'],
      ])
    }),
  )
})

describe('after an attempt without a response, which may have been charged, every client takes for unreachable', () => {
  it.each(['AGENT_STARTING', 'OVERLOADED', 'STOPPING', 'CALLER_LIMITED'])('an agent that answers %s', async (code) => {
    const body = JSON.stringify({ code, message: 'not now' })
    const refusal = http(body, { status: '503 Service Unavailable', headers: 'Retry-After: 1\r\n' })
    script = (socket, number) => void (number === 1 ? socket.destroy() : socket.write(refusal))
    await all([REQUEST], [`error AgentUnreachable ${code} later`])
  })
})

it('every client waits for the permission to connect if the socket appears while it tries', async ({ skip }) => {
  if (spawnSync('setpriv', ['--version']).status !== 0) skip('setpriv is not installed')
  await Promise.all(
    wires.map(async (wire) => {
      using driver = wire.unprivileged()
      chmodSync(wire.socket, 0o666)
      script = (socket, number, _, client) => {
        if (number > 1) return void socket.write(http(BODY))
        const { socket: path } = wires.find(({ name }) => name === client) ?? wire
        chmodSync(path, 0)
        setTimeout(() => chmodSync(path, 0o666), 300)
        socket.destroy()
      }
      expect([wire.name, await driver.do(REQUEST)]).toEqual([wire.name, [GRANTED]])
    }),
  )
}, 30_000)

it('every client fails at once if its user may not connect', async ({ skip }) => {
  if (spawnSync('setpriv', ['--version']).status !== 0) skip('setpriv is not installed')
  await Promise.all(
    wires.map(async (wire) => {
      using driver = wire.unprivileged()
      expect([wire.name, await driver.do(REQUEST)]).toEqual([
        wire.name,
        ['error AgentUnreachable SOCKET_NOT_PERMITTED no sign in'],
      ])
    }),
  )
}, 30_000)
