// A command that is asked to end by its user, or by the supervisor that started it: with the real process and real signals.
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, mkdtempSync, openSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { type AddressInfo, type Socket, createServer } from 'node:net'
import { generateKeyPairSync } from 'node:crypto'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { backUpLedger } from '../../src/agent/platform/sqlite/backup.ts'
import { deviceWithBacklog } from '../agent/platform/sqlite/damaged.ts'
import { orNull } from '../../src/platform/or-null.ts'
import { openDatabase } from '../../src/cloud/storage/sqlite/database.ts'
import { COMMAND } from '../support/command.ts'

let directory: string
let stack: AsyncDisposableStack
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tallygate-signals-'))
  stack = new AsyncDisposableStack()
  stack.defer(() => rmSync(directory, { recursive: true }))
})
afterEach(() => stack.disposeAsync())

/** Takes connections, says so much on each, and then nothing for ever. */
async function hanging(at: string | null, says: string) {
  const connections: Socket[] = []
  const server = createServer((socket) => {
    socket.on('error', () => undefined)
    socket.once('data', () => {
      connections.push(socket)
      socket.write(says)
    })
  })
  await new Promise<void>((resolve) =>
    at === null ? server.listen(0, '127.0.0.1', resolve) : server.listen(at, resolve),
  )
  stack.defer(() => {
    server.close()
    for (const connection of connections) connection.destroy()
  })
  return { port: (server.address() as AddressInfo).port, connections }
}

/** Runs a command, sends the signal when it has come so far, and returns how it ended. */
async function signalled(
  args: readonly string[],
  signal: NodeJS.Signals,
  isSoFar: () => boolean,
): Promise<number | NodeJS.Signals | null> {
  const child = spawn(process.execPath, [COMMAND, ...args], { stdio: ['ignore', 'ignore', 'ignore'] })
  stack.defer(() => void child.kill('SIGKILL'))
  await expect.poll(isSoFar, { timeout: 20_000, interval: 20 }).toBe(true)
  child.kill(signal)
  const [code, by] = (await once(child, 'close')) as [number | null, NodeJS.Signals | null]
  return code ?? by
}

test.each([
  ['SIGINT', 130],
  ['SIGTERM', 143],
  ['SIGHUP', 129],
] as const)('%s ends a command that waits for an agent that hangs', async (signal, code) => {
  const socket = join(directory, 'agent.sock')
  const { connections } = await hanging(socket, '')
  expect(await signalled(['status', '--socket', socket], signal, () => connections.length > 0)).toBe(code)
})

test('SIGINT ends a command that would follow the log of an agent that hangs', async () => {
  const socket = join(directory, 'agent.sock')
  const { connections } = await hanging(socket, '')
  const args = ['logs', '--follow', '--socket', socket]
  expect(await signalled(args, 'SIGINT', () => connections.length > 0)).toBe(130)
})

test('SIGINT ends a command that reads a pipe to which nothing is written', async () => {
  const pipe = join(directory, 'site.yaml')
  execFileSync('mkfifo', [pipe])
  let writer: number | undefined
  const isReading = (): boolean => {
    try {
      // Without a reader, this fails.
      writer ??= openSync(pipe, constants.O_WRONLY | constants.O_NONBLOCK)
      return true
    } catch {
      return false
    }
  }
  expect(await signalled(['apply', '-f', pipe], 'SIGINT', isReading)).toBe('SIGINT')
  closeSync(writer!)
})

test('an output that is full ends a command with its reason', async () => {
  const full = openSync('/dev/full', 'w')
  const child = spawn(process.execPath, [COMMAND, '--help'], { stdio: ['ignore', full, 'pipe'] })
  closeSync(full)
  const [err, [code]] = await Promise.all([text(child.stderr!), once(child, 'close') as Promise<[number | null]>])
  expect(err).toMatch(
    /^tallygate: OUTPUT_UNWRITABLE: Cannot write the output: ENOSPC.* is charged again\. Free disk space/,
  )
  expect(code).toBe(73)
})

test('a repeated look ends well, also without a response', async () => {
  const socket = join(directory, 'agent.sock')
  const { connections } = await hanging(socket, '')
  expect(await signalled(['status', '--watch', '--socket', socket], 'SIGINT', () => connections.length > 0)).toBe(0)
})

test('an export that is ended in the middle leaves no part of its file', async () => {
  const { port } = await hanging(
    null,
    'HTTP/1.1 200 OK\r\nx-next-cursor: 9\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n',
  )
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const key = join(directory, 'admin.pem')
  writeFileSync(key, privateKey.export({ format: 'pem', type: 'pkcs8' }), { mode: 0o600 })
  const files = () => readdirSync(directory).filter((name) => name.startsWith('usage.csv'))
  const args = ['usage', 'export', '--url', `http://127.0.0.1:${port}/dm`, '--admin-key', key]
  const code = await signalled([...args, '--out', join(directory, 'usage.csv')], 'SIGTERM', () => files().length > 0)
  expect([code, files()]).toEqual([143, []])
})

const copies = () => {
  const folder = mkdtempSync(join(tmpdir(), 'tallygate-copies-'))
  stack.defer(() => rmSync(folder, { recursive: true }))
  return folder
}

const ledger = async () => {
  const { journal, path } = await deviceWithBacklog()
  await journal.close()
  return path
}

/** Arguments of commands whose work SQLite does, by the folder in which they may leave files. */
const longWork: Record<string, (folder: string) => Promise<readonly string[]>> = {
  backup: async (folder) => ['backup', '--db', await ledger(), join(folder, 'copy.db')],
  'cloud backup': async (folder) => {
    openDatabase(join(directory, 'twin.db'), { check: false }).close()
    return ['cloud', 'backup', '--store-path', directory, join(folder, 'copy.db')]
  },
  explain: async () => ['explain', '0'.repeat(8) + '-0000-4000-8000-000000000000', '--db', await ledger()],
  restore: async () => {
    const backup = join(directory, 'backup.db')
    const path = await ledger()
    await backUpLedger(path, backup)
    return ['restore', backup, '--db', path]
  },
}

/** The process that does the work of a command; undefined before it runs. */
function workOf(command: number | undefined): number | undefined {
  const [child = ''] = readFileSync(`/proc/${command}/task/${command}/children`, 'utf8').split(' ')
  // Before that, Node waits for it.
  if (child === '' || !readFileSync(`/proc/${child}/cmdline`, 'utf8').includes('database-process')) return undefined
  return Number(child)
}

/** Stops the process that does the work, once there is one. */
function isStopped(command: number | undefined): boolean {
  const work = workOf(command)
  if (work !== undefined) process.kill(work, 'SIGSTOP')
  return work !== undefined
}

test.each(Object.entries(longWork))('SIGINT ends %s in the middle, and leaves no file', async (_name, argsOf) => {
  const folder = copies()
  const args = await argsOf(folder)
  const env = { ...process.env, TMPDIR: folder }
  const child = spawn(process.execPath, [COMMAND, ...args], { stdio: 'ignore', env })
  stack.defer(() => void child.kill('SIGKILL'))
  await expect.poll(() => isStopped(child.pid), { timeout: 20_000, interval: 5 }).toBe(true)
  child.kill('SIGINT')
  const [code] = (await once(child, 'close')) as [number | null]
  expect([code, readdirSync(folder)]).toEqual([130, []])
})

/** A backup that waits for ever for the log of the ledger. */
async function endlessBackup() {
  const path = await ledger()
  rmSync(`${path}-wal`, { force: true })
  execFileSync('mkfifo', [`${path}-wal`])
  const child = spawn(process.execPath, [COMMAND, 'backup', '--db', path, join(copies(), 'copy.db')], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  stack.defer(() => void child.kill('SIGKILL'))
  await expect.poll(() => workOf(child.pid), { timeout: 20_000, interval: 5 }).toBeDefined()
  return { child, work: workOf(child.pid)! }
}

function isRunning(pid: number): boolean {
  const stat = orNull(() => readFileSync(`/proc/${pid}/stat`, 'utf8'))
  return stat !== null && !/\) [ZX] /.test(stat)
}

test('work on a database ends when its command is killed', async () => {
  const { child, work } = await endlessBackup()
  stack.defer(() => void orNull(() => process.kill(work, 'SIGKILL')))
  child.kill('SIGKILL')
  await expect.poll(() => isRunning(work), { timeout: 20_000, interval: 20 }).toBe(false)
})

test('a command says that its work on a database was killed', async () => {
  const { child, work } = await endlessBackup()
  process.kill(work, 'SIGKILL')
  const [err, [code]] = await Promise.all([text(child.stderr), once(child, 'close') as Promise<[number | null]>])
  expect(err).toMatch(
    /^tallygate: INTERNAL: The process that works on the database ended early \(SIGKILL\)\. If memory/,
  )
  expect(code).toBe(70)
})
