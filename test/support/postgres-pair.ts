// Two PostgreSQL servers of a test's own: a primary and its standby, or two that have nothing in common, which a test may kill, promote and connect again. They
// need the programs of an installed PostgreSQL: a container would have to give up its processes and its files.
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { globSync } from 'node:fs'
import { appendFile, chown, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { promisify } from 'node:util'
import { runSql } from './postgres-schema.ts'
import { onPath } from './on-path.ts'
import { freePort } from './free-port.ts'
import { childrenOf, signalEach } from './processes.ts'
import { answersQueries, anotherUser, server } from './servers.ts'

export interface PostgresPrograms {
  readonly folder: string
  readonly isMissing: boolean
}

/** The tests of the scope are skipped where the programs are missing. Call it like those in servers.ts. */
export function postgresPrograms(): PostgresPrograms {
  const path = onPath(['pg_rewind'], globSync('/usr/lib/postgresql/*/bin').sort().reverse())
  const missing = 'no pg_rewind on PATH or in /usr/lib/postgresql/*/bin'
  server('PostgreSQL programs', [
    async () => (path === undefined ? missing : { url: path, stop: async () => undefined }),
  ])
  return { folder: dirname(path ?? ''), isMissing: path === undefined }
}

const SETTINGS = `
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_keep_size = '1GB'
wal_retrieve_retry_interval = '100ms'
# What is in memory when a server is killed stays in memory.
wal_writer_delay = '10s'
# These servers lose their processes, never their machine.
fsync = off
`

type User = { readonly uid: number; readonly gid: number } | undefined

interface Place {
  readonly programs: string
  readonly folder: string
  readonly user: User
}

/** One server on a port of its own, which it keeps. */
export class PostgresProcess {
  readonly port: number
  readonly data: string
  readonly #place: Place
  #child: ChildProcess | undefined
  #output = ''

  constructor(place: Place, name: string, port: number) {
    this.#place = place
    this.port = port
    this.data = join(place.folder, name)
  }

  get url(): string {
    return `postgres://test@127.0.0.1:${this.port}/postgres`
  }

  get isRunning(): boolean {
    return this.#child !== undefined && this.#child.exitCode === null && this.#child.signalCode === null
  }

  /** Runs a program of PostgreSQL to its end. */
  async run(program: string, ...args: string[]): Promise<void> {
    const { programs, folder, user } = this.#place
    await promisify(execFile)(join(programs, program), args, { cwd: folder, ...user })
  }

  async start(): Promise<void> {
    while (!(await this.#starts())) {
      // A connection of another process may have taken the port meanwhile.
      if (!this.#output.includes('Address already in use')) throw new Error(`PostgreSQL did not start: ${this.#output}`)
      await pause(100)
    }
  }

  async #starts(): Promise<boolean> {
    const { programs, folder, user } = this.#place
    const options = { cwd: folder, stdio: ['ignore', 'ignore', 'pipe'] as ['ignore', 'ignore', 'pipe'], ...user }
    const child = spawn(join(programs, 'postgres'), ['-D', this.data, '-p', String(this.port)], options)
    this.#child = child
    this.#output = ''
    const killWithUs = (): void => void child.kill('SIGKILL')
    process.once('exit', killWithUs)
    const closed = once(child, 'close').then(() => process.off('exit', killWithUs))
    child.stderr.on('data', (chunk: Buffer) => (this.#output += chunk.toString()))
    while (!(await answersQueries(this.url))) {
      if (child.exitCode !== null || child.signalCode !== null) {
        await closed
        return false
      }
      await pause(20)
    }
    return true
  }

  /** As a machine that loses its power, except for what the kernel has yet to write. */
  async kill(): Promise<void> {
    const child = this.#child
    if (child?.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
    const gone = once(child, 'exit')
    // It must start no other process while its own are found.
    child.kill('SIGSTOP')
    signalEach(childrenOf(child.pid), 'SIGKILL')
    child.kill('SIGKILL')
    await gone
  }

  /** Its processes stay, with their connections, and do nothing. Returns the way back. */
  freeze(): () => void {
    const pid = this.#child?.pid
    if (pid === undefined) throw new Error('the server does not run')
    process.kill(pid, 'SIGSTOP')
    const all = [pid, ...childrenOf(pid)]
    signalEach(all, 'SIGSTOP')
    return () => signalEach(all, 'SIGCONT')
  }

  async stop(): Promise<void> {
    const child = this.#child
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
    const gone = once(child, 'exit')
    child.kill('SIGINT')
    await gone
  }

  async promote(): Promise<void> {
    await runSql(this.url, 'SELECT pg_promote()')
  }

  async requireNoStandby(): Promise<void> {
    await runSql(this.url, 'ALTER SYSTEM RESET synchronous_standby_names')
    await runSql(this.url, 'SELECT pg_reload_conf()')
  }

  /** From now on, commits wait until a standby has written them. Waits until one has. */
  async requireStandby(): Promise<void> {
    await runSql(this.url, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
    await runSql(this.url, 'SELECT pg_reload_conf()')
    const text = `SELECT count(*)::int AS count FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'`
    while ((await runSql<{ count: number }>(this.url, text))[0]?.count !== 1) await pause(20)
  }
}

async function initialize(server: PostgresProcess): Promise<void> {
  const cluster = ['-U', 'test', '-A', 'trust', '-E', 'UTF8', '--locale=C', '--data-checksums', '--no-sync']
  await server.run('initdb', '-D', server.data, ...cluster)
  await appendFile(join(server.data, 'postgresql.conf'), SETTINGS)
  await server.start()
}

export class PostgresPair implements AsyncDisposable {
  readonly #folder: string
  readonly #servers: readonly [PostgresProcess, PostgresProcess]

  private constructor(folder: string, servers: readonly [PostgresProcess, PostgresProcess]) {
    this.#folder = folder
    this.#servers = servers
  }

  /** The first server is the primary, and the second one its standby. Commits do not wait for it yet. */
  static async start(programs: string): Promise<PostgresPair> {
    return PostgresPair.#open(programs, async (primary, standby) => {
      await initialize(primary)
      await standby.run('pg_basebackup', '-D', standby.data, '-R', '-c', 'fast', '--no-sync', '-d', primary.url)
      await standby.start()
    })
  }

  /** Two servers that have nothing in common. */
  static async startApart(programs: string): Promise<PostgresPair> {
    return PostgresPair.#open(programs, async (...servers) => void (await Promise.all(servers.map(initialize))))
  }

  static async #open(
    programs: string,
    make: (first: PostgresProcess, second: PostgresProcess) => Promise<void>,
  ): Promise<PostgresPair> {
    const folder = await mkdtemp(join(tmpdir(), 'tallygate-pair-'))
    const user = process.getuid?.() === 0 ? anotherUser() : undefined
    if (user !== undefined) await chown(folder, user.uid, user.gid)
    const place = { programs, folder, user }
    const first = new PostgresProcess(place, 'first', await freePort())
    const second = new PostgresProcess(place, 'second', await freePort())
    const pair = new PostgresPair(folder, [first, second])
    try {
      await make(first, second)
      return pair
    } catch (error) {
      await pair[Symbol.asyncDispose]()
      throw error
    }
  }

  get servers(): readonly [PostgresProcess, PostgresProcess] {
    return this.#servers
  }

  /** Address of the one of both that is the primary. */
  get url(): string {
    const [{ port: first }, { port: second }] = this.#servers
    return `postgres://test@127.0.0.1:${first},127.0.0.1:${second}/postgres?target_session_attrs=read-write`
  }

  /** Makes a killed primary the standby of the new one. */
  async rejoin(former: PostgresProcess, primary: PostgresProcess): Promise<void> {
    // The new history begins with a checkpoint, by which the two are compared.
    await runSql(primary.url, 'CHECKPOINT')
    const source = `host=127.0.0.1 port=${primary.port} user=test dbname=postgres`
    await former.run('pg_rewind', '-D', former.data, '--source-server', source, '-R', '--no-sync')
    await former.start()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const each of this.#servers) await each.kill()
    await rm(this.#folder, { recursive: true, force: true })
  }
}
