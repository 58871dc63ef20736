// Commands of root in the directory of a service, whose user has put symbolic links there to a file of root.
import { once } from 'node:events'
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { backUpLedger } from '../../src/agent/platform/sqlite/backup.ts'
import { restoreLedger } from '../../src/agent/platform/sqlite/restore-ledger.ts'
import { userOf } from '../../src/agent/platform/system/names.ts'
import { repair } from '../../src/cli/doctor/fix.ts'
import { actAsOwnerOf } from '../../src/platform/act-as-owner-of.ts'
import { openKeyFile } from '../../src/cloud/platform/key-file/key-file.ts'
import { deviceWithBacklog } from '../agent/platform/sqlite/damaged.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { file, healthy, settings as settingsOf } from './doctor-observations.ts'
import { tallygate } from './outside.ts'

const USER = 65_534

function give(directory: string): void {
  for (const name of ['.', ...readdirSync(directory)]) chownSync(join(directory, name), USER, USER)
}

/** Of the user, with a backup of root. */
async function givenLedger(): Promise<{ readonly directory: string; readonly path: string; readonly backup: string }> {
  const { directory, journal, path } = await deviceWithBacklog()
  const backup = join(temporaryDirectory(), 'backup.db')
  await backUpLedger(path, backup)
  await journal.close()
  give(directory)
  return { directory, path, backup }
}

function fileOfRoot(): { readonly path: string; readonly isUnchanged: () => boolean } {
  const path = join(temporaryDirectory(), 'precious')
  writeFileSync(path, 'precious', { mode: 0o644 })
  const isUnchanged = (): boolean => {
    const { uid, mode } = statSync(path)
    return uid === 0 && (mode & 0o777) === 0o644 && readFileSync(path, 'utf8') === 'precious'
  }
  return { path, isUnchanged }
}

const owners = (directory: string): readonly number[] => [
  ...new Set(readdirSync(directory).map((name) => statSync(join(directory, name)).uid)),
]

describe.skipIf(process.getuid?.() !== 0)('root', () => {
  it.each(['journal.db-disk-reserve', 'device.key'])(
    'repairs no file that %s of the agent leads to',
    { timeout: 60_000 },
    async (name) => {
      const { directory, journal } = await deviceWithBacklog()
      await journal.close()
      const { path, isUnchanged } = fileOfRoot()
      rmSync(join(directory, name), { force: true })
      symlinkSync(path, join(directory, name))
      give(directory)
      chownSync(path, 0, 0)
      const socket = join(directory, 'agent.sock')
      const env = { TALLYGATE_AGENT_STATE_DIRECTORY: directory, TALLYGATE_AGENT_SOCKET_PATH: socket }
      const { out } = await tallygate(['doctor', '--fix', '--no-network'], { env })
      expect(out).toContain(`NOT fixed: chmod 0600 ${join(directory, name)}: EACCES`)
      expect(isUnchanged()).toBe(true)
      expect(process.geteuid?.()).toBe(0)
    },
  )

  it('repairs no file that a token in the directory of the agent leads to', async () => {
    const directory = temporaryDirectory()
    const { path, isUnchanged } = fileOfRoot()
    const token = join(directory, 'token')
    symlinkSync(path, token)
    chownSync(directory, USER, USER)
    const env = { TALLYGATE_AGENT_STATE_DIRECTORY: directory, TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: token }
    const { out } = await tallygate(['doctor', '--fix', '--no-network'], { env })
    expect(out).toContain(`NOT fixed: chmod 0640 ${token}: E`)
    expect(isUnchanged()).toBe(true)
  })

  it('does not open the socket of another service that the socket of the agent leads to', async () => {
    const [directory, other] = [temporaryDirectory(), join(temporaryDirectory(), 'other.sock')]
    const service = createServer((connection) => connection.destroy()).listen(other)
    await once(service, 'listening')
    onTestFinished(() => void service.close())
    chmodSync(other, 0o600)
    const socket = join(directory, 'agent.sock')
    symlinkSync(other, socket)
    chownSync(directory, USER, USER)
    const env = { TALLYGATE_AGENT_STATE_DIRECTORY: directory, TALLYGATE_AGENT_SOCKET_PATH: socket }
    const { out } = await tallygate(['doctor', '--fix', '--no-network'], { env })
    expect([out, statSync(other).mode & 0o777]).toEqual([
      expect.stringContaining(`NOT fixed: chmod 0660 ${socket}`),
      0o600,
    ])
  })

  it('repairs only what belongs to the user of the process whose settings it uses', () => {
    const [ofRoot, ofUser] = [temporaryDirectory(), temporaryDirectory()]
    chownSync(ofUser, USER, USER)
    const user = userOf(USER) ?? String(USER)
    const { configuration } = healthy()
    const choice = { why: 'ONLY', isNamed: false, process: { pid: 5, user }, others: [] } as const
    for (const directory of [ofRoot, ofUser]) chmodSync(directory, 0o777)
    const [one, other] = [ofRoot, ofUser].map((directory) =>
      repair(
        healthy({
          directory: file(directory, { kind: 'directory', mode: 0o777 }),
          configuration: { ...configuration, choice },
        }),
      ),
    )
    expect(one).toMatchObject([{ done: false, problem: expect.stringContaining(`process 5 of ${user}`) as string }])
    expect(other).toMatchObject([{ done: true }])
    expect([ofRoot, ofUser].map((directory) => statSync(directory).mode & 0o777)).toEqual([0o777, 0o700])
  })

  it('repairs files of root that the settings of the machine name, and no others that a process of a user names', () => {
    const directory = temporaryDirectory()
    const [settings, token, key, other] = ['agent.toml', 'token', 'key', 'other'].map((name) => join(directory, name))
    const paths = [settings!, token!, key!, other!]
    for (const path of paths) writeFileSync(path, '')
    for (const path of paths) chmodSync(path, 0o666)
    const process = { pid: 5, user: userOf(USER) ?? String(USER) }
    const wrong = (path: string) => file(path, { mode: 0o666 })
    const observations = healthy({
      settings: settingsOf({ 'device-key-file': key! }),
      key: { ...healthy().key, ...wrong(key!) },
      configuration: {
        ...healthy().configuration,
        ...{ file: settings!, choice: { why: 'ONLY', isNamed: false, process, others: [] } },
        files: [settings!, token!, other!].map(wrong),
        filesOfMachine: [settings!, token!, key!],
      },
    })
    const done = new Map(repair(observations).map(({ what, done }) => [what.split(' ').at(-1), done]))
    expect(paths.map((path) => done.get(path))).toEqual([true, true, true, false])
    expect(paths.map((path) => statSync(path).mode & 0o777)).toEqual([0o664, 0o660, 0o660, 0o666])
  })

  it('backs up a ledger into the directory of a user, under the longest name that the file system takes', async () => {
    const { path, journal } = await deviceWithBacklog()
    const directory = temporaryDirectory()
    chownSync(directory, USER, USER)
    const name = 'b'.repeat(255)
    await backUpLedger(path, join(directory, name))
    expect(readdirSync(directory)).toEqual([name])
    await journal.close()
  })

  it('backs up a ledger into the directory of a user who puts links in the place of its copies', async () => {
    const { path, journal } = await deviceWithBacklog()
    const { path: precious, isUnchanged } = fileOfRoot()
    const directory = temporaryDirectory()
    chownSync(directory, USER, USER)
    const to = join(directory, 'backup.db')
    symlinkSync(precious, to)
    const made = backUpLedger(path, to)
    for (const name of readdirSync(directory).filter((each) => each.startsWith('.tallygate-backup-'))) {
      renameSync(join(directory, name), join(directory, 'away'))
      mkdirSync(join(directory, name))
      symlinkSync(precious, join(directory, name, 'journal.db'))
    }
    await made
    expect(isUnchanged()).toBe(true)
    expect(readdirSync(directory)).toEqual(['backup.db'])
    const { uid, mode } = lstatSync(to)
    expect([uid, mode & 0o777]).toEqual([0, 0o600])
    await journal.close()
    expect(await restoreLedger(to, path, 0)).toMatchObject({ undelivered: 40 })
  })

  it('restores a ledger that its user owns, from a backup that only root can read', async () => {
    const { directory, path, backup } = await givenLedger()
    const { path: precious, isUnchanged } = fileOfRoot()
    symlinkSync(precious, `${path}.restoring`)
    expect(await restoreLedger(backup, path, 0)).toMatchObject({ undelivered: 40 })
    expect(isUnchanged()).toBe(true)
    expect(owners(directory)).toEqual([USER])
  })

  it('names the database that the user of the ledger may not use', async () => {
    const { path, backup } = await givenLedger()
    chownSync(path, 0, 0)
    const message = `${path}: the user with the id ${USER} may not read and write ${path}`
    await expect(restoreLedger(backup, path, 0)).rejects.toMatchObject({ code: 'STATE_UNWRITABLE', message })
  })

  it.each(['signing-key.pem.next.new', 'signing-keys.json.new'])(
    'replaces no file that %s of the cloud leads to',
    async (name) => {
      const directory = temporaryDirectory()
      openKeyFile(join(directory, 'signing-key.pem'))
      give(directory)
      const { path, isUnchanged } = fileOfRoot()
      symlinkSync(path, join(directory, name))
      const rotate = ['cloud', 'rotate-signing-key', '--store-path', directory]
      expect(await tallygate(rotate)).toMatchObject({
        code: 73,
        err: expect.stringMatching(/Cannot write .*: this user may not write there[.]/) as string,
      })
      expect(isUnchanged()).toBe(true)
      rmSync(join(directory, name))
      expect(await tallygate(rotate)).toMatchObject({ code: 0 })
      expect(existsSync(join(directory, 'signing-keys.json'))).toBe(true)
      expect(owners(directory)).toEqual([USER])
    },
  )

  it.each([
    ['agent', (directory: string) => ['--state-directory', directory, '--socket-path', join(directory, 'agent.sock')]],
    ['cloud', (directory: string) => ['--store-path', directory, '--http-port', '0', '--push-port', '0']],
  ] as const)('starts no %s in the directory of another user, and makes no file there', async (service, flagsOf) => {
    const directory = temporaryDirectory()
    give(directory)
    const { code, err } = await tallygate([service, ...flagsOf(directory)], { stop: () => AbortSignal.abort() })
    // The remedies for other reasons are left out.
    expect(err).toMatch(
      /^tallygate: STATE_UNWRITABLE: .* makes there\. Start the service as this user \(with sudo: sudo -u '#65534'; in a container: --user 65534\)\.\n$/,
    )
    expect(code).toBe(73)
    expect(readdirSync(directory)).toEqual([])
  })

  it('keeps its groups if it cannot act as the owner', () => {
    const directory = temporaryDirectory()
    give(directory)
    const own = [process.getegid?.(), process.getgroups?.()]
    const refusal = new Error('EINVAL')
    vi.spyOn(process, 'seteuid').mockImplementationOnce(() => {
      throw refusal
    })
    expect(() => actAsOwnerOf(directory)).toThrow(refusal)
    expect([process.getegid?.(), process.getgroups?.()]).toEqual(own)
  })

  it('leaves the refusal of a directory that cannot be looked at to the work in it', async () => {
    const path = join(temporaryDirectory(), 'x'.repeat(300))
    const { err } = await tallygate(['cloud', 'rotate-signing-key', '--store-path', path])
    expect(err).toMatch(/^tallygate: KEY_UNUSABLE: The key file .* cannot be accessed \(ENAMETOOLONG\)/)
  })

  it('leaves other users their rights, also in a directory that they may not look at', () => {
    const hidden = join(temporaryDirectory(), 'hidden')
    process.seteuid?.(USER)
    try {
      expect(() => actAsOwnerOf(hidden)).not.toThrow()
    } finally {
      process.seteuid?.(0)
    }
  })
})
