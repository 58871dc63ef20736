import { spawnSync } from 'node:child_process'
import { chownSync, cpSync, existsSync, readdirSync, statSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { expect, it } from 'vitest'
import { openKeyring } from '../../src/cloud/platform/key-file/keyring-file.ts'
import { openKeyFile } from '../../src/cloud/platform/key-file/key-file.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { tallygate } from './outside.ts'

it('changes the signing key once for each of several commands at the same time', async () => {
  const directory = temporaryDirectory()
  const path = join(directory, 'signing-key.pem')
  openKeyFile(path)
  const first = (await openKeyring(path)).signer.keyId
  const rotate = () => tallygate(['cloud', 'rotate-signing-key', '--store-path', directory])
  const results = await Promise.all([rotate(), rotate(), rotate()])
  expect(results.map(({ code, err }) => ({ code, err }))).toEqual(
    Array.from({ length: 3 }, () => ({ code: 0, err: '' })),
  )
  const { signer, succeeded, trusted } = await openKeyring(path)
  expect(succeeded[0]).toBe(first)
  expect([...new Set([...succeeded, signer.keyId])]).toHaveLength(4)
  expect(trusted).toHaveLength(4)
  const forget = (key = first) => tallygate(['cloud', 'forget-signing-key', key, '--store-path', directory])
  expect((await forget('x')).err).toMatch(/NOT_FOUND: x is not .* keys: \S+, .*\. Give one of these\.\n$/)
  expect((await Promise.all([rotate(), forget(), rotate()])).map(({ code }) => code)).toEqual([0, 0, 0])
  const keyring = await openKeyring(path)
  expect(keyring.succeeded).toHaveLength(5)
  expect(keyring.trusted.map(({ keyId }) => keyId)).not.toContain(first)
  expect(existsSync(`${path}.next`)).toBe(false)
})

it('reports that another process has the lock of the keys, and waits for it', async () => {
  const directory = temporaryDirectory()
  openKeyFile(join(directory, 'signing-key.pem'))
  const path = join(directory, 'signing-keys.lock')
  const lock = new Database(path)
  lock.exec('BEGIN EXCLUSIVE')
  let shown = ''
  const rotating = tallygate(['cloud', 'rotate-signing-key', '--store-path', directory], {
    stderr: {
      write: (text: string) => {
        shown += text
        lock.close()
        return true
      },
    },
  })
  expect((await rotating).code).toBe(0)
  expect(shown).toBe(`Waiting for another process that has locked ${path}\n`)
})

it.skipIf(process.getuid?.() !== 0)(
  'is changed by root with an installation that only root can read',
  { timeout: 60_000 },
  () => {
    const [installation, directory] = [temporaryDirectory(), temporaryDirectory()]
    const project = new URL('../../', import.meta.url).pathname
    for (const name of ['src', 'package.json'])
      cpSync(join(project, name), join(installation, name), { recursive: true })
    symlinkSync(join(project, 'node_modules'), join(installation, 'node_modules'))
    const path = join(directory, 'signing-key.pem')
    openKeyFile(path)
    const user = 65_534
    for (const each of [directory, path]) chownSync(each, user, user)
    const main = join(installation, 'src/cli/main.ts')
    const args = [main, 'cloud', 'rotate-signing-key', '--store-path', directory]
    const { status, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' })
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
    expect(readdirSync(directory).map((name) => statSync(join(directory, name)).uid)).toEqual([user, user, user])
  },
)
