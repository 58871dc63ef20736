// Files without end, and a process without a descriptor left.
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type TestContext, afterEach, beforeEach, expect, test } from 'vitest'
import { openDatabase } from '../../src/agent/platform/sqlite/open-database.ts'
import { readSmallText } from '../../src/platform/read-file.ts'
import { readSettingFile } from '../../src/platform/read-setting-file.ts'
import { type DeniedError, systemFailure, unreadableSetting } from '../../src/protocol/file-reasons.ts'
import { smallDisk } from '../support/mounts.ts'
import { programForTest } from '../support/program.ts'
import { COMMAND } from '../support/command.ts'

const root = new URL('../../', import.meta.url).pathname

let directory: string
beforeEach(() => (directory = mkdtempSync(join(tmpdir(), 'tallygate-read-'))))
afterEach(() => rmSync(directory, { recursive: true }))

function pipe(): string {
  const path = join(directory, 'pipe')
  execFileSync('mkfifo', [path])
  return path
}

function huge(): string {
  const path = join(directory, 'huge')
  writeFileSync(path, '')
  truncateSync(path, 2 ** 40)
  return path
}

test('a file is read whole, also one whose size the system does not know', () => {
  const path = join(directory, 'file')
  writeFileSync(path, 'é'.repeat(100_000))
  expect(readSmallText(path)).toBe('é'.repeat(100_000))
  expect(readSmallText('/proc/self/status')).toContain('VmRSS')
})

test('a device, a pipe, a directory and a huge file are refused at once', () => {
  expect(() => readSmallText('/dev/zero')).toThrow('it is a pipe or a device, not a file')
  expect(() => readSmallText(pipe())).toThrow('it is a pipe or a device, not a file')
  expect(() => readSmallText(huge())).toThrow('it is larger than 4 MiB')
  expect(() => readSmallText(directory)).toThrow('EISDIR')
})

test('the error about a file of a setting names the setting, the file and the reason', () => {
  expect(() => readSettingFile('push.ca_file', '/no/ca.pem')).toThrow(
    'push.ca_file: /no/ca.pem: there is no such file.',
  )
})

test('the error about a file that this user may not read names the user and the command that gives access', () => {
  const found = (error: Partial<DeniedError>, path = '/etc/my token') => {
    const { code, message, details } = unreadableSetting(Object.assign(new Error(), error), path, 'tls.ca_file')
    return { code, message, remedy: details['remedy'] }
  }
  const code = 'CONFIG_UNREADABLE'
  const message = 'tls.ca_file: the user with the id 999 may not read it.'
  const remedy =
    "If this is the user of the service, let it read the file, as root: `chown 999 '/etc/my token'` (`namei -l '/etc/my token'` shows all owners). Otherwise, run the command as root."
  expect(found({ code: 'EACCES', user: 999 })).toEqual({ code, message, remedy })
  expect(found({ code: 'EACCES', user: 999 }, 'eyJhbGci')).toEqual({ code, message, remedy: undefined })
  expect(found({ code: 'ENOENT', user: 999 })).toMatchObject({ remedy: undefined })
  expect(() => readSmallText('/no/file')).toThrow(expect.objectContaining({ user: process.geteuid?.() }) as Error)
})

test.each([
  ['a device', () => '/dev/zero', 'it is a pipe or a device, not a file'],
  ['a pipe', pipe, 'it is a pipe or a device, not a file'],
  ['a huge file', huge, 'it is larger than 4 MiB'],
])('a service refuses %s as a file with a secret', (_, make, reason) => {
  const path = make()
  const args = ['agent', '--state-directory', directory, '--enrollment-token-file', path]
  const { status, stderr } = spawnSync(process.execPath, [COMMAND, ...args], { encoding: 'utf8', timeout: 30_000 })
  expect(stderr).toContain(`tallygate: CONFIG_UNREADABLE: --enrollment-token-file: ${path}: ${reason}.`)
  expect(status).toBe(78)
})

test('a command refuses a key that has no end', () => {
  const args = ['token', '--admin', '--key', '/dev/zero']
  const { stderr } = spawnSync(process.execPath, [COMMAND, ...args], { encoding: 'utf8', timeout: 30_000 })
  expect(stderr).toContain('tallygate: KEY_UNUSABLE: Cannot read /dev/zero: it is larger than 256 MiB.')
})

/** What the call throws in a process that can open only that many more files. */
function withoutDescriptors(context: TestContext, imports: string, before: string, call: string, left = 0): string {
  const script = `
    import { closeSync, openSync } from 'node:fs'
    ${imports}
    ${before}
    const opened = []
    try { for (;;) opened.push(openSync('/dev/null')) } catch {}
    for (const file of opened.slice(0, ${left})) closeSync(file)
    try { ${call} } catch (error) { process.stdout.write(error.code + ': ' + error.message) }`
  const node = [process.execPath, '--input-type=module', '-e', script]
  return execFileSync(programForTest(context, 'prlimit'), ['--nofile=64', ...node], { encoding: 'utf8', cwd: root })
}

test('a key is not blamed if no file can be opened', (context) => {
  const path = join(directory, 'key.pem')
  writeFileSync(path, 'a key', { mode: 0o600 })
  const before = `const path = ${JSON.stringify(path)}`
  const opened = (module: string, call: string) =>
    withoutDescriptors(context, `import { openKeyFile } from './src/${module}'`, before, call)
  const refusal = `OPEN_FILES_USED_UP: ${path} cannot be opened: EMFILE.`
  expect(opened('cloud/platform/key-file/key-file.ts', `openKeyFile(path)`)).toBe(refusal)
  expect(opened('agent/platform/key-file/key-file.ts', 'await openKeyFile({ path, create: false })')).toBe(refusal)
})

test.for([0, 1])('a ledger is not called damaged if %i files can be opened', (left, context) => {
  const path = join(directory, 'journal.db')
  const imports = `
    import { openDatabase } from './src/agent/platform/sqlite/open-database.ts'
    import { readLedgerCopy } from './src/agent/platform/sqlite/read-ledger.ts'`
  const before = `const path = ${JSON.stringify(path)}; openDatabase(path).close()`
  const thrown = (call: string) => withoutDescriptors(context, imports, before, call, left)
  const refusal = `OPEN_FILES_USED_UP: ${path} cannot be opened: EMFILE.`
  expect(thrown('openDatabase(path)')).toBe(refusal)
  if (left === 0) expect(thrown('await readLedgerCopy(path, path, async () => undefined)')).toBe(refusal)
})

test('a ledger is not salvaged if the program of SQLite cannot be opened', (context) => {
  const path = join(directory, 'journal.db')
  openDatabase(path).close()
  const imports = `import { openOrSalvage } from './src/agent/platform/sqlite/salvage-journal.ts'`
  const call = `openOrSalvage({ path: ${JSON.stringify(path)}, later: [], left: null }, 0)`
  expect(withoutDescriptors(context, imports, '', call)).toBe(`OPEN_FILES_USED_UP: ${path} cannot be opened: EMFILE.`)
})

test('a database file that cannot be opened for want of inodes has that reason', ({ skip }) => {
  const disk = smallDisk(skip, '8m,nr_inodes=2')
  const path = join(disk, 'journal.db')
  writeFileSync(path, '')
  expect(() => openDatabase(path)).toThrow(
    expect.objectContaining({ code: 'STATE_UNWRITABLE', message: `${path}: the disk has no inodes left` }),
  )
})

test('a failed read is one of the disk', () => {
  for (const code of ['EIO', 'SQLITE_IOERR_READ']) {
    expect(systemFailure(Object.assign(new Error(code), { code }), '/a')).toMatchObject({ code: 'DISK_FAILED' })
  }
  expect(systemFailure(Object.assign(new Error(), { code: 'ENOENT' }), '/a')).toBeNull()
})
