// Administrators with names, roles and instances, and what the audit shows of them.
import { generateKeyPairSync } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { ALWAYS, newKeyPair, openTwin } from '../cloud/harness.ts'
import { fakeService, readAdminKey } from './fake-service.ts'
import { tallygate } from './outside.ts'

const cells = (line = ''): readonly string[] => line.split(/ {2,}/)

test('an administrator with a role changes what the role permits, and the audit shows the name', async () => {
  await using twin = await openTwin()
  const instanceId = await twin.shop(ALWAYS)
  const all = twin.cloud.administrationKeyFile
  const ada = join(twin.directory, 'ada.pem')
  writeFileSync(ada, newKeyPair().privatePem)
  const world = { now: () => twin.now, readText: (path: string) => readFileSync(path, 'utf8') }
  const run = (key: string, ...args: readonly string[]) =>
    tallygate([...args, '--url', twin.cloud.address, '--admin-key', key], world)

  const limits = ['--name', 'Ada', '--role', 'rules', '--role', 'read', '--instance', instanceId]
  const added = await run(all, 'keys', 'set', ada, ...limits)
  expect(added).toMatchObject({ code: 0, err: '' })
  const [, first, second] = (await run(all, 'keys', 'list')).out.split('\n')
  expect(cells(first).slice(1)).toEqual([
    'first key',
    'administration-key',
    'all',
    'all',
    new Date(twin.now).toISOString(),
  ])
  expect(cells(second).slice(0, 5)).toEqual([added.out.trim(), 'Ada', 'administration-key', 'read,rules', 'Test'])

  const reserve = ['devices', 'cloud-reserve', '--instance', instanceId, '--line-item', 'ACT-1', '--tokens', '2.5']
  expect(await run(ada, ...reserve)).toMatchObject({ code: 0, err: '' })
  const token = await run(ada, 'devices', 'enrollment-token', '--instance', instanceId)
  expect(token.err).toMatch(
    /^tallygate: ROLE_MISSING: .*requires the role operator\. The key Ada has the roles read, rules\. Use a key/,
  )
  expect((await run(ada, 'audit', 'list')).err).toMatch(
    /^tallygate: INSTANCE_NOT_IN_SCOPE: The key Ada is limited to one instance/,
  )

  const [head, newest] = (await run(ada, 'audit', 'list', '--instance', instanceId, '--limit', '1')).out.split('\n')
  expect(cells(head)).toEqual(['AT', 'BY', 'CHANGE', 'OBJECT', 'CALLER', 'DETAIL'])
  expect(cells(newest)).toEqual([
    new Date(twin.now).toISOString(),
    'Ada',
    'set cloud reserve',
    'instance Test line item ACT-1',
    'administrator',
    'tokens: 2.5',
  ])
  const paged = await run(all, 'audit', 'list', '--limit', '1')
  const [, cursor = ''] = /repeat the command with --before (\d+)\n$/.exec(paged.err) ?? []
  const following = await run(all, 'audit', 'list', '--limit', '1', '--before', cursor)
  expect(following.out).not.toBe(paged.out)
  const found = await run(
    all,
    'audit',
    'list',
    '--by',
    'Ada',
    '--action',
    'set-cloud-reserve',
    '--until',
    '2026-06-01',
    '--json',
  )
  expect(found).toMatchObject({ code: 0, err: '' })
  expect(
    found.out
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as unknown),
  ).toMatchObject([{ action: 'SET_CLOUD_RESERVE' }])
  expect((await run(all, 'audit', 'list', '--by', 'Ada', '--since', '2026-06-01', '--json')).out.trim()).toBe('')
  expect((await run(all, 'audit', 'list', '--by', 'Ada', '--since', '2026-06-01')).out).toBe('No records.\n')
  expect(await run(all, 'audit', 'list', '--action', 'lock')).toMatchObject({ code: 64 })
  const saved = (await run(all, 'audit', 'list', '--json')).out.split('\n').find((line) => line.includes('"Ada\\"'))
  expect(JSON.parse(saved ?? '')).toMatchObject({
    action: 'SAVE_KEYS',
    by: { kind: 'ADMINISTRATOR', name: 'first key' },
  })
})

test('a role that does not exist, and the role of a client key, are refused', async () => {
  const pem = newKeyPair().publicPem
  const keys = (...args: readonly string[]) =>
    tallygate(['keys', 'set', 'k.pem', '--url', 'http://127.0.0.1:1', '--admin-key', 'a.pem', ...args], {
      readText: () => pem,
    })
  expect(await keys('--role', 'root')).toMatchObject({ code: 64 })
  expect((await keys('--client', '--role', 'read')).err).toMatch(/^tallygate: USAGE: A client key has no roles/)
})

test('a file without a key that the service accepts is refused with its name', async () => {
  const weak = generateKeyPairSync('rsa', { modulusLength: 1024 }).publicKey.export({ type: 'spki', format: 'pem' })
  const other = generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' })
  for (const [text, problem] of [
    ['', 'k.pem does not contain a PEM key.'],
    [weak, 'k.pem: the key is neither an RSA key of 2048 bits or more nor a P-256 key.'],
    [other, 'k.pem: the key is neither an RSA key of 2048 bits or more nor a P-256 key.'],
  ] as const) {
    const args = ['keys', 'set', 'k.pem', '--url', 'http://127.0.0.1:1', '--admin-key', 'a.pem']
    const { code, err } = await tallygate(args, { readText: () => text })
    expect([code, err]).toEqual([66, expect.stringContaining(`KEY_UNUSABLE: ${problem}`)])
  }
})

test('the key of a client is limited to an instance, as the list shows', async () => {
  await using twin = await openTwin()
  const instanceId = await twin.instance()
  const shop = join(twin.directory, 'shop.pem')
  writeFileSync(shop, newKeyPair().privatePem)
  const run = (...args: readonly string[]) =>
    tallygate([...args, '--url', twin.cloud.address, '--admin-key', twin.cloud.administrationKeyFile], {
      now: () => twin.now,
      readText: (path: string) => readFileSync(path, 'utf8'),
    })
  const limits = ['--client', '--id', 'shop', '--name', 'Shop', '--instance', instanceId]
  expect(await run('keys', 'set', shop, ...limits)).toMatchObject({ code: 0, out: 'shop\n' })
  const { out } = await run('keys', 'list')
  expect(out).toMatch(/^shop +Shop +client-key +Test /m)
})

test.each(['1800000000000', '178000000000000', '2026-05-01', '0'])('the cursor %s is refused', async (cursor) => {
  const { code, err } = await tallygate(['audit', 'list', '--before', cursor])
  expect([code, err]).toEqual([
    64,
    expect.stringContaining('Use the cursor that a list printed. --until selects by time.'),
  ])
})

test('a list without records needs no names', async () => {
  const list = 'GET /dm/edge/api/v1/audit?size=100'
  await using cloud = await fakeService('tcp', { [list]: { body: { records: [], next: null } } })
  const args = ['audit', 'list', '--url', cloud.address, '--admin-key', '/admin.pem']
  expect(await tallygate(args, { readText: readAdminKey })).toEqual({ code: 0, out: 'No records.\n', err: '' })
  expect(cloud.asked).toHaveLength(1)
})
