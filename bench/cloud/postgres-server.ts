/** PostgreSQL with flushes: from the environment, or an installed one on a new cluster. */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, globSync, mkdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { freePort } from '../../test/support/free-port.ts'

export interface PostgresServer {
  readonly url: string
  readonly version: string
  readonly stop: () => Promise<void>
}

const START_MS_MAX = 20_000

/** A text: why there is none. */
export async function startPostgres(directory: string): Promise<PostgresServer | string> {
  const given = process.env['TALLYGATE_TEST_POSTGRES_URL']
  if (given !== undefined && given !== '')
    return { url: given, version: await versionOf(given), stop: async () => undefined }
  const binary = installedPostgres()
  if (binary === undefined) return 'TALLYGATE_TEST_POSTGRES_URL is not set, and no PostgreSQL is installed'
  return startInstalled(binary, directory)
}

export function installedPostgres(): string | undefined {
  const [binary] = globSync('/usr/lib/postgresql/*/bin/postgres').sort().reverse()
  return binary
}

export interface InstalledPostgres extends PostgresServer {
  readonly pid: number
  readonly port: number
}

/**
 * On a new cluster below `directory`.
 *
 * @param sockets folder of its socket, which is called `.s.PGSQL.<port>`; null: only a port of this machine
 * @returns a text: why it does not start
 */
export async function startInstalled(
  binary: string,
  directory: string,
  sockets: string | null = null,
): Promise<InstalledPostgres | string> {
  const data = join(directory, 'postgres')
  mkdirSync(data)
  // The server refuses to run as root.
  const user = process.getuid?.() === 0 ? installedUser() : {}
  for (const folder of [data, ...(sockets === null ? [] : [sockets])]) {
    if (user.uid !== undefined) chownSync(folder, user.uid, user.gid ?? user.uid)
  }
  const cluster = ['-D', data, '-U', 'bench', '-A', 'trust', '-E', 'UTF8', '--locale=C']
  execFileSync(join(dirname(binary), 'initdb'), cluster, { ...user, cwd: data, stdio: 'ignore' })
  const port = await freePort()
  const child = spawn(
    binary,
    [
      ...['-D', data, '-p', String(port), '-c', 'listen_addresses=127.0.0.1'],
      ...['-c', `unix_socket_directories=${sockets ?? ''}`],
    ],
    { ...user, cwd: data, stdio: 'ignore' },
  )
  const exit = once(child, 'exit')
  const stop = async (): Promise<void> => {
    child.kill('SIGINT')
    await exit
  }
  const url = `postgres://bench@127.0.0.1:${port}/postgres`
  const giveUpAt = performance.now() + START_MS_MAX
  while (performance.now() < giveUpAt && child.exitCode === null) {
    try {
      return { url, version: await versionOf(url), stop, pid: child.pid ?? 0, port }
    } catch {
      await delay(50)
    }
  }
  await stop()
  return `${binary} does not start`
}

export async function ask<R extends pg.QueryResultRow>(url: string, text: string): Promise<readonly R[]> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => undefined)
  try {
    await client.connect()
    return (await client.query<R>(text)).rows
  } finally {
    await client.end().catch(() => undefined)
  }
}

async function versionOf(url: string): Promise<string> {
  return (await ask<{ server_version: string }>(url, 'SHOW server_version'))[0]?.server_version ?? 'unknown'
}

function installedUser(): { readonly uid?: number; readonly gid?: number } {
  const fields = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
    .find(([name]) => name === 'postgres')
  return fields === undefined ? {} : { uid: Number(fields[2]), gid: Number(fields[3]) }
}
