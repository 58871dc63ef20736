// SIGHUP at services that run as an operator runs them.
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import type { IncomingMessage } from 'node:http'
import { get } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { type PeerCertificate, type TLSSocket, connect } from 'node:tls'
import { promisify } from 'node:util'
import { describe, expect, it, onTestFinished } from 'vitest'
import { HttpClient } from '../../src/client/http.ts'
import { AGENT_STATUS_PATH, agentStatus } from '../../src/protocol/local/status.ts'
import { Authority, type Certified } from '../support/certificates.ts'
import { COMMAND } from '../support/command.ts'

interface Line {
  readonly msg: string
  readonly level: number
  readonly [field: string]: unknown
}

class Service {
  readonly #child: ChildProcess
  readonly #lines: Line[] = []
  readonly warnings: Line[] = []
  #wake: () => void = () => undefined

  constructor(args: readonly string[]) {
    this.#child = spawn(process.execPath, [COMMAND, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
    onTestFinished(() => void this.#child.kill('SIGKILL'))
    createInterface({ input: this.#child.stdout! }).on('line', (line) => {
      const parsed = JSON.parse(line) as Line
      this.#lines.push(parsed)
      if (parsed.level === 40) this.warnings.push(parsed)
      this.#wake()
    })
  }

  /** The next line with this message; lines before it are passed over. */
  async line(message: string): Promise<Line> {
    for (;;) {
      const line = this.#lines.shift()
      if (line?.msg === message) return line
      if (line === undefined) await new Promise<void>((resolve) => (this.#wake = resolve))
    }
  }

  /** Removes the oldest warning. */
  async warning(): Promise<Line> {
    while (this.warnings.length === 0) await new Promise<void>((resolve) => (this.#wake = resolve))
    return this.warnings.shift()!
  }

  hangUp(): void {
    this.#child.kill('SIGHUP')
  }

  async end(): Promise<number | null> {
    const ended = new Promise<number | null>((resolve) => this.#child.once('close', resolve))
    this.#child.kill('SIGTERM')
    return ended
  }
}

function place(): (name: string) => string {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-reload-'))
  onTestFinished(() => rmSync(directory, { recursive: true }))
  return (name) => join(directory, name)
}

async function conditionsOf(socketPath: string): Promise<readonly [subject: string, code: string, message: string][]> {
  using client = new HttpClient({ address: `unix:${socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  const { conditions } = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
  return conditions
    .filter(({ subject }) => subject === 'settings')
    .map(({ subject, code, message }) => [subject, code, message])
}

describe('the agent on SIGHUP', () => {
  it('takes over what it may, keeps the rest, and says in log and status what waits', async () => {
    const inside = place()
    const write = (more: string): void =>
      writeFileSync(
        inside('agent.toml'),
        `state.directory = "${inside('state')}"\nsocket.path = "${inside('agent.sock')}"\n${more}\n`,
      )
    write('')
    const agent = new Service(['agent', '--config', inside('agent.toml')])
    await agent.line('listening')

    write('log.level = "debug"\nsync.interval = "1h"\nsocket.mode = "0600"')
    agent.hangUp()
    expect(await agent.line('settings reloaded')).toMatchObject({
      changed: ['sync.interval', 'log.level'],
      needRestart: ['socket.mode'],
    })
    expect(await conditionsOf(inside('agent.sock'))).toEqual([
      ['settings', 'CONFIG_NEEDS_RESTART', 'These settings changed but need a restart: socket.mode.'],
    ])

    write('log.level = "loud"')
    agent.hangUp()
    const refused = await agent.line('settings not reloaded')
    expect(refused).toMatchObject({ level: 50, code: 'CONFIG_NOT_RELOADED', cause: 'CONFIG_INVALID' })
    const [[, code, message]] = (await conditionsOf(inside('agent.sock'))) as [[string, string, string]]
    expect(code).toBe('CONFIG_NOT_RELOADED')
    expect(message).toContain('log.level is "loud", but takes "debug", "info", "warn" or "error"')

    write('callers.use = "user:nobody-of-that-name"')
    agent.hangUp()
    expect(await agent.line('settings not reloaded')).toMatchObject({ cause: 'CONFIG_INVALID' })

    write('status.port = 0\nstatus.host = "0.0.0.0"')
    agent.hangUp()
    expect(await agent.line('settings not reloaded')).toMatchObject({
      reason: expect.stringContaining('status.host is 0.0.0.0, which other machines can reach') as string,
    })

    // What the agent started with.
    write('')
    agent.hangUp()
    expect(await agent.line('settings reloaded')).toMatchObject({ changed: ['sync.interval', 'log.level'] })
    expect(await conditionsOf(inside('agent.sock'))).toEqual([])
    expect(await agent.end()).toBe(0)
  })

  it('is not ended by one that comes while it starts', async () => {
    const inside = place()
    writeFileSync(inside('agent.toml'), '')
    const places = ['--state-directory', inside('state'), '--socket-path', inside('agent.sock')]
    const agent = new Service(['agent', '--config', inside('agent.toml'), ...places])
    await agent.line('listening')
    agent.hangUp()
    agent.hangUp()
    await agent.line('settings reloaded')
    expect(await agent.end()).toBe(0)
  })
})

describe('the status page on SIGHUP', () => {
  /** An agent with a status page over TLS; `write` says what is in its settings besides. */
  async function pageOf(more: (inside: (name: string) => string) => string) {
    const inside = place()
    const write = (and: string): void =>
      writeFileSync(
        inside('agent.toml'),
        `state.directory = "${inside('state')}"\nsocket.path = "${inside('agent.sock')}"\nstatus.port = 0\n
status.certificate_file = "${inside('certificate.pem')}"\nstatus.key_file = "${inside('key.pem')}"\n${and}\n`,
      )
    await renew(inside, 'first')
    write(more(inside))
    const agent = new Service(['agent', '--config', inside('agent.toml')])
    return { inside, agent, write, page: String((await agent.line('listening'))['status']) }
  }

  it('shows the certificate that stands in its files, and keeps talking to who is connected', async () => {
    const { inside, agent, page } = await pageOf(() => '')
    const { hostname, port } = new URL(page)
    const standing: TLSSocket = connect({ host: hostname, port: Number(port), rejectUnauthorized: false })
    onTestFinished(() => void standing.destroy())
    const live = async (): Promise<string> => {
      standing.write('GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n')
      return new Promise((resolve, reject) => {
        standing.once('data', (data: Buffer) => resolve(data.toString().split('\r\n', 1)[0] ?? ''))
        standing.once('close', () => reject(new Error('the connection was closed')))
      })
    }
    expect(await live()).toBe('HTTP/1.1 200 OK')

    await renew(inside, 'second')
    agent.hangUp()
    expect(await agent.line('settings reloaded')).toMatchObject({
      changed: ['status.certificate_file', 'status.key_file'],
    })
    expect(await nameAt(page)).toBe('second')
    expect(await live()).toBe('HTTP/1.1 200 OK')
    expect(standing.getPeerCertificate().subject.CN).toBe('first')

    const key = readFileSync(inside('key.pem'))
    await renew(inside, 'third')
    writeFileSync(inside('key.pem'), key)
    agent.hangUp()
    expect(await agent.line('settings not reloaded')).toMatchObject({
      code: 'CONFIG_NOT_RELOADED',
      cause: 'CONFIG_INVALID',
    })
    expect(await nameAt(page)).toBe('second')
    rmSync(inside('certificate.pem'))
    agent.hangUp()
    expect(await agent.line('settings not reloaded')).toMatchObject({ cause: 'CONFIG_UNREADABLE' })
    expect(await nameAt(page)).toBe('second')

    await renew(inside, 'fourth')
    agent.hangUp()
    await agent.line('settings reloaded')
    expect(await nameAt(page)).toBe('fourth')
    expect(await agent.end()).toBe(0)
  })

  it('asks for the token that stands in its file, and keeps the previous one if the new one would admit everyone', async () => {
    const { inside, agent, page, write } = await pageOf((inside) => {
      writeFileSync(inside('token'), 'first')
      return `status.host = "0.0.0.0"\nstatus.token_file = "${inside('token')}"`
    })
    const statusFor = async (token: string): Promise<number> => {
      const { port } = new URL(page)
      const headers = { authorization: `Bearer ${token}` }
      const asked = get({ port, path: '/status', headers, rejectUnauthorized: false, agent: false })
      const [answer] = (await once(asked, 'response')) as [IncomingMessage]
      answer.resume()
      return answer.statusCode ?? 0
    }
    expect([await statusFor('first'), await statusFor('second')]).toEqual([200, 401])
    writeFileSync(inside('token'), 'second')
    agent.hangUp()
    expect(await agent.line('settings reloaded')).toMatchObject({ changed: ['status.token_file'], needRestart: [] })
    expect([await statusFor('first'), await statusFor('second')]).toEqual([401, 200])

    write('status.host = "0.0.0.0"')
    agent.hangUp()
    expect(await agent.line('settings not reloaded')).toMatchObject({
      cause: 'CONFIG_INVALID',
      reason: expect.stringContaining('status.token_file') as string,
    })
    expect([await statusFor('first'), await statusFor('second')]).toEqual([401, 200])
    expect(await agent.end()).toBe(0)
  })
})

describe('the twin on SIGHUP', () => {
  it('takes over what it may, and shows in its metrics whether it could', async () => {
    const inside = place()
    const write = (more: string): void => writeFileSync(inside('cloud.toml'), `${more}\n`)
    write('')
    const free = ['--store-path', inside('cloud'), '--http-port', '0', '--push-port', '0']
    const twin = new Service(['cloud', '--config', inside('cloud.toml'), ...free])
    const { http } = await twin.line('listening')
    const successful = async (): Promise<string | undefined> => {
      const text = await (await fetch(new URL('/metrics', String(http)))).text()
      return /^tallygate_config_last_reload_successful (\d)$/m.exec(text)?.[1]
    }

    write('edge.sync_every = "1m"\nedge.policy_usable = "1d"')
    twin.hangUp()
    expect(await twin.line('settings reloaded')).toMatchObject({
      changed: ['edge.sync_every'],
      needRestart: ['edge.policy_usable'],
    })
    expect(await successful()).toBe('1')

    write('edge.sync_evry = "1m"')
    twin.hangUp()
    expect(await twin.line('settings not reloaded')).toMatchObject({ code: 'CONFIG_NOT_RELOADED' })
    expect(await successful()).toBe('0')

    write('http.public_url = "https://cloud.example/dynamicmonetization"')
    twin.hangUp()
    expect(await twin.line('settings not reloaded')).toMatchObject({ cause: 'CONFIG_INVALID' })

    const file = inside('cloud.toml')
    for (const [settings, reason] of [
      [`push.ca_file = "${file}"`, `push.ca_file: ${file} has no PEM certificate.`],
      [`events.ca_file = "${file}"`, `events.ca_file: ${file} has no PEM certificate.`],
      ['db = "postgres://a,,b/c"', 'The address of the database has an empty host'],
      [
        `[[events.webhooks]]\nname = "a"\nurl = "https://a.example"\nsecret_file = "${file}"`,
        `${file} must contain one to`,
      ],
    ] as const) {
      write(settings)
      twin.hangUp()
      const found = await twin.line('settings not reloaded')
      expect(found).toMatchObject({ cause: 'CONFIG_INVALID', reason: expect.stringContaining(reason) as string })
    }
    expect(await twin.end()).toBe(0)
  })

  it('shows the certificate that stands in its files, and the one from before where they do not fit', async () => {
    const inside = place()
    await renew(inside, 'first')
    const free = ['--store-path', inside('cloud'), '--http-port', '0', '--push-port', '0']
    const tls = ['--tls-certificate-file', inside('certificate.pem'), '--tls-key-file', inside('key.pem')]
    const twin = new Service(['cloud', ...free, ...tls])
    const { http, push } = await twin.line('listening')
    const names = () => Promise.all([nameAt(String(http)), nameAt(String(push))])
    expect(await names()).toEqual(['first', 'first'])

    await renew(inside, 'second')
    twin.hangUp()
    expect(await twin.line('settings reloaded')).toMatchObject({ changed: ['tls.certificate_file', 'tls.key_file'] })
    expect(await names()).toEqual(['second', 'second'])
    twin.hangUp()
    expect(await twin.line('settings reloaded')).toMatchObject({ changed: [] })

    const key = readFileSync(inside('key.pem'))
    await renew(inside, 'third')
    writeFileSync(inside('key.pem'), key)
    twin.hangUp()
    expect(await twin.line('settings not reloaded')).toMatchObject({ cause: 'CONFIG_INVALID' })
    expect(await names()).toEqual(['second', 'second'])
  })

  it('takes files of other names as well, and says that none at all waits for a restart', async () => {
    const inside = place()
    await renew(inside, 'first')
    const config = inside('cloud.toml')
    const tls = (folder: string) =>
      `[tls]\ncertificate_file = "${inside(`${folder}certificate.pem`)}"\nkey_file = "${inside(`${folder}key.pem`)}"\n`
    writeFileSync(config, tls(''))
    const free = ['--store-path', inside('cloud'), '--http-port', '0', '--push-broker', 'off', '--config', config]
    const twin = new Service(['cloud', ...free])
    const { http } = await twin.line('listening')
    expect(await nameAt(String(http))).toBe('first')

    mkdirSync(inside('next'))
    await renew((name) => inside(`next/${name}`), 'second')
    writeFileSync(config, tls('next/'))
    twin.hangUp()
    const changed = ['tls.certificate_file', 'tls.key_file']
    expect(await twin.line('settings reloaded')).toMatchObject({ changed, needRestart: [] })
    expect(await nameAt(String(http))).toBe('second')

    writeFileSync(config, '')
    twin.hangUp()
    expect(await twin.line('settings reloaded')).toMatchObject({ changed: [], needRestart: changed })
    expect(await nameAt(String(http))).toBe('second')
  })
})

describe('a certificate that clients will refuse', () => {
  it('is a warning of the twin at its start and at each reload', async () => {
    const inside = place()
    await using authority = await Authority.make()
    const write = ({ certificate, key }: Certified): void => {
      writeFileSync(inside('certificate.pem'), certificate)
      writeFileSync(inside('key.pem'), key)
    }
    write(await authority.certify(Date.now() - 3_600_000, 'cloud.example'))
    const free = ['--store-path', inside('cloud'), '--http-port', '0', '--push-broker', 'off']
    const tls = ['--tls-certificate-file', inside('certificate.pem'), '--tls-key-file', inside('key.pem')]
    const twin = new Service(['cloud', ...free, ...tls, '--http-public-url', 'https://cloud.example'])
    const warning = async (): Promise<unknown> => {
      const { level, code, file, reason } = await twin.warning()
      expect({ level, code, file }).toEqual({
        level: 40,
        code: 'CERTIFICATE_NOT_VALID',
        file: inside('certificate.pem'),
      })
      return reason
    }
    expect(await warning()).toMatch(/^expired at 2/)
    await twin.line('listening')
    write(await authority.certify(Date.now() + 86_400_000, 'other.example'))
    twin.hangUp()
    expect(await warning()).toMatch(/^is not for cloud\.example, but for .*other\.example/)
    await twin.line('settings reloaded')
    write(await authority.certify(Date.now() + 86_400_000, 'cloud.example'))
    twin.hangUp()
    await twin.line('settings reloaded')
    expect(twin.warnings).toEqual([])
    expect(await twin.end()).toBe(0)
  })
})

async function renew(inside: (name: string) => string, name: string): Promise<void> {
  const kind = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2']
  const files = ['-keyout', inside('key.pem'), '-out', inside('certificate.pem')]
  await promisify(execFile)('openssl', [...kind, '-subj', `/CN=${name}`, ...files])
}

/** Common name of the certificate that a server shows. */
async function nameAt(address: string): Promise<string> {
  const { hostname, port } = new URL(address)
  return new Promise((resolve, reject) => {
    const socket: TLSSocket = connect({ host: hostname, port: Number(port), rejectUnauthorized: false }, () => {
      const { subject }: PeerCertificate = socket.getPeerCertificate()
      socket.destroy()
      resolve(String(subject.CN))
    })
    socket.once('error', reject)
  })
}
