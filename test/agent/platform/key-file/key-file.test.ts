import { createPublicKey, generateKeyPairSync } from 'node:crypto'
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, unlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type KeyFilesOptions, openKeyFile, openKeyFiles } from '../../../../src/agent/platform/key-file/key-file.ts'
import { openDocument, signDocument, thumbprint } from '../../../../src/protocol/signing.ts'

let folder = ''
beforeEach(async () => (folder = await mkdtemp(join(tmpdir(), 'tallygate-key-'))))
afterEach(() => rm(folder, { recursive: true, force: true }))

const file = (): string => join(folder, 'device.pem')
const codeOf = (error: unknown): unknown => (error as { code?: unknown }).code

async function refusal(open: Promise<unknown>): Promise<unknown> {
  return open.then(() => undefined, codeOf)
}

test('a key is made once, readable by its owner only, and the same ever after', async () => {
  const made = await openKeyFile({ path: file(), create: true })
  expect((await stat(file())).mode & 0o777).toBe(0o600)
  expect(await readdir(folder)).toEqual(['device.pem'])
  expect(await readFile(file(), 'utf8')).toMatch(/^-----BEGIN PRIVATE KEY-----/)
  const again = await openKeyFile({ path: file(), create: true })
  expect(again.publicJwk).toEqual(made.publicJwk)
  expect(made.signer.keyId).toBe(await thumbprint(made.publicJwk))
  expect(JSON.stringify(made.publicJwk)).not.toContain('"d"')
})

test.each(['ed25519', 'ec'] as const)('a provided %s key signs documents', async (type) => {
  const { privateKey } =
    type === 'ec' ? generateKeyPairSync('ec', { namedCurve: 'P-256' }) : generateKeyPairSync('ed25519')
  // Either PEM form will do.
  const pem = privateKey.export(type === 'ec' ? { format: 'pem', type: 'sec1' } : { format: 'pem', type: 'pkcs8' })
  await writeFile(file(), pem, { mode: 0o440 })
  const { publicJwk, signer } = await openKeyFile({ path: file(), create: false })
  const document = await signDocument('segment', 'hello', signer)
  const key = createPublicKey({ key: publicJwk, format: 'jwk' })
  expect(await openDocument('segment', document, key)).toBe('hello')
})

test('a file that cannot be a device key is refused, and left unchanged', async () => {
  const { privateKey: rsa } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  const { privateKey: locked } = generateKeyPairSync('ed25519')
  const cases = [
    '',
    'nonsense',
    rsa.export({ format: 'pem', type: 'pkcs8' }),
    locked.export({ format: 'pem', type: 'pkcs8', cipher: 'aes-256-cbc', passphrase: 'p' }),
  ]
  for (const content of cases) {
    await writeFile(file(), content, { mode: 0o600 })
    expect(await refusal(openKeyFile({ path: file(), create: true }))).toBe('DEVICE_KEY_UNUSABLE')
    expect(await readFile(file(), 'utf8')).toBe(content)
  }
})

test('a key that others can read is not used', async () => {
  await openKeyFile({ path: file(), create: true })
  for (const mode of [0o640, 0o604, 0o666]) {
    await chmod(file(), mode)
    expect(await refusal(openKeyFile({ path: file(), create: true }))).toBe('DEVICE_KEY_UNUSABLE')
  }
  await chmod(file(), 0o604)
  expect(await refusal(openKeyFile({ path: file(), create: false }))).toBe('DEVICE_KEY_UNUSABLE')
})

test('an open key file leads to chmod and a new key, never to another enrollment', async () => {
  await openKeyFile({ path: file(), create: true })
  await chmod(file(), 0o644)
  await expect(openKeyFile({ path: file(), create: true })).rejects.toMatchObject({
    message: `The key file ${file()} cannot be used: its mode 0644 lets other users access it.`,
    details: { remedy: expect.stringMatching(/^Run `chmod 600 .*device\.pem` .*`tallygate rotate-key`/) as string },
  })
  await expect(openKeyFile({ path: folder, create: true })).rejects.toThrow('it is a directory')
})

test('a missing key is made only where it may be made', async () => {
  expect(await refusal(openKeyFile({ path: file(), create: false }))).toBe('DEVICE_KEY_UNUSABLE')
  expect(await readdir(folder)).toEqual([])
  expect(await refusal(openKeyFile({ path: join(folder, 'missing', 'device.pem'), create: true }))).toBe(
    'STATE_UNWRITABLE',
  )
})

test('no key is made for a device that has had one', async () => {
  const options = { path: file(), nextPath: `${file()}.next`, create: true }
  expect(await refusal(openKeyFiles(options, async () => false))).toBe('DEVICE_KEY_UNUSABLE')
  expect(await readdir(folder)).toEqual([])
  const { current } = await openKeyFiles(options, async () => true)
  const again = await openKeyFiles(options, async () => false)
  expect(again.current.signer.keyId).toBe(current.signer.keyId)
})

test('of two processes that make the key at the same time both use the same one', async () => {
  const keys = await Promise.all([1, 2].map(() => openKeyFile({ path: file(), create: true }).catch(codeOf)))
  const opened = keys.filter((key) => typeof key === 'object')
  expect(opened.length).toBeGreaterThan(0)
  const stored = await openKeyFile({ path: file(), create: true })
  for (const key of opened) expect(key).toMatchObject({ publicJwk: stored.publicJwk })
})

describe('a next key', () => {
  const LINK = { introduction: 'introduction', possession: 'possession' }
  const files = async () => {
    const path = file()
    const options = { path, nextPath: `${path}.next`, create: true } satisfies KeyFilesOptions
    return { options, keys: await openKeyFiles(options) }
  }

  test('is made once, is there after a restart, and takes the name of the one in use', async () => {
    const { options, keys } = await files()
    const before = keys.current.signer.keyId
    expect(keys.next).toBeNull()
    const made = await keys.prepare()
    expect(await keys.prepare()).toBe(made)
    expect((await stat(options.nextPath)).mode & 0o777).toBe(0o600)
    const again = await openKeyFiles(options)
    expect([again.current.signer.keyId, again.next?.signer.keyId]).toEqual([before, made.signer.keyId])
    await again.replace([LINK])
    expect([again.current.signer.keyId, again.next]).toEqual([made.signer.keyId, null])
    const last = await openKeyFiles(options)
    expect([last.current.signer.keyId, last.next]).toEqual([made.signer.keyId, null])
    expect([again.links, last.links]).toEqual([[LINK], [LINK]])
    expect((await stat(options.path)).mode & 0o777).toBe(0o600)
    expect((await readdir(dirname(options.path))).length).toBe(1)
  })

  test('takes its place also if its links cannot be written', async () => {
    const { options, keys } = await files()
    const made = await keys.prepare()
    await mkdir(`${options.nextPath}.new`)
    await keys.replace([LINK])
    expect(keys.links).toEqual([LINK])
    const { current, next, links } = await openKeyFiles(options)
    expect([current.signer.keyId, next, links]).toEqual([made.signer.keyId, null, []])
  })

  test('can be used if its links cannot be read', async () => {
    const { options, keys } = await files()
    const made = await keys.prepare()
    await keys.replace([LINK])
    const text = await readFile(options.path, 'utf8')
    for (const damaged of [text.replace('[{', '[{{'), text.replace('introduction', 'other'), text.slice(0, -5)]) {
      await writeFile(options.path, damaged)
      const { current, links } = await openKeyFiles(options)
      expect([current.signer.keyId, links]).toEqual([made.signer.keyId, []])
    }
  })

  test('is created again after it was discarded', async () => {
    const { options, keys } = await files()
    const made = await keys.prepare()
    await keys.discard()
    await keys.discard()
    expect((await openKeyFiles(options)).next).toBeNull()
    expect((await keys.prepare()).signer.keyId).not.toBe(made.signer.keyId)
  })

  test('of a key that is provided is provided as well, and neither file is touched', async () => {
    const [path, nextPath] = [file(), `${file()}.2`]
    const first = await openKeyFile({ path, create: true })
    const second = await openKeyFile({ path: nextPath, create: true })
    const alone = await openKeyFiles({ path, nextPath: null, create: false })
    await expect(alone.prepare()).rejects.toMatchObject({ code: 'DEVICE_KEY_PROVIDED' })
    const keys = await openKeyFiles({ path, nextPath, create: false })
    expect((await keys.prepare()).signer.keyId).toBe(second.signer.keyId)
    await keys.discard()
    await keys.replace([LINK])
    expect([keys.current.signer.keyId, keys.next]).toEqual([second.signer.keyId, null])
    expect((await openKeyFile({ path, create: false })).signer.keyId).toBe(first.signer.keyId)
    const both = await openKeyFiles({ path: nextPath, nextPath, create: false })
    expect(both.next).toBeNull()
  })

  test('that cannot be written or moved into place causes a coded error', async () => {
    const { options, keys } = await files()
    const nowhere = await openKeyFiles({ ...options, nextPath: join(options.path, 'no', 'directory') }).catch(
      (error: unknown) => error,
    )
    expect(nowhere).toMatchObject({ code: 'DEVICE_KEY_UNUSABLE' })
    await keys.prepare()
    await unlink(options.path)
    await mkdir(options.path)
    await expect(keys.replace([])).rejects.toMatchObject({ code: 'STATE_UNWRITABLE' })
  })
})
