// Archives by the command, from the database of a cloud that runs.
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Twin, openTwin } from '../cloud/harness.ts'
import { S3_TEST, s3 } from '../support/servers.ts'
import { type Ran, tallygate } from './outside.ts'

let folder: string
let twin: Twin
let instance: string
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'tallygate-usage-archive-'))
  twin = await openTwin()
  instance = await twin.instance()
  await twin.lineItem(instance)
  await twin.rates({ Print: 0.125 })
  for (let n = 0; n < 3; n += 1) await twin.access(instance, { Print: 1 })
})
afterEach(async () => {
  await twin[Symbol.asyncDispose]()
  rmSync(folder, { recursive: true, force: true })
})

const run = (args: readonly string[], env: Record<string, string> = {}): Promise<Ran> =>
  tallygate(['usage', ...args], {
    readText: (path) => readFileSync(path, 'utf8'),
    now: () => twin.now,
    env,
  })
const fromCloud = (verb: string, ...args: readonly string[]) =>
  run([verb, '--url', twin.cloud.address, '--admin-key', twin.cloud.administrationKeyFile, ...args])
const exported = (...args: readonly string[]) => fromCloud('export', ...args)
const archive = (to: string, env: Record<string, string> = {}, before = twin.now + 1) =>
  run(['archive', '--to', to, '--until', String(before), '--store-path', twin.settings.store.path], env)
/** @param env of the commands that use the place */
const moves = async (place: string, env: Record<string, string> = {}): Promise<void> => {
  const [csv, lines] = [await exported(), await exported('--format', 'ndjson')]
  const written = await archive(place, env)
  expect(written).toMatchObject({ code: 0, err: '' })
  expect(written.out).toContain(`3 records in 1 archive in ${place}.`)
  const refused = await exported()
  expect(refused.code).not.toBe(0)
  expect(refused.err).toMatch(
    new RegExp(`USAGE_ARCHIVED: Usage records up to \\d+ are archived in[\\s\\S]*${place}[\\s\\S]*--from-archive`),
  )
  expect(await run(['export', '--from-archive', place], env)).toEqual(csv)
  const totals = await run(['totals', '--from-archive', place, '--by', 'instance', '--json'], env)
  expect(JSON.parse(totals.out)).toMatchObject({ instanceId: instance, tokens: 0.375 })
  const file = join(folder, 'out')
  const read = await run(
    ['export', '--from-archive', place, '--format', 'ndjson', '--instance', instance, '--out', file],
    env,
  )
  expect(read).toEqual({ ...lines, out: '' })
  expect(readFileSync(file, 'utf8')).toBe(lines.out)
  const cursor = /next cursor: (\d+)/.exec(read.err)![1]!
  await twin.access(instance, { Print: 1 })
  const rest = await exported('--after', cursor, '--format', 'ndjson')
  expect(rest.out.split('\n')).toHaveLength(2)
  expect(totals.err).toBe(read.err)
  const later = await fromCloud('totals', '--after', cursor, '--by', 'instance', '--json')
  expect(JSON.parse(later.out)).toMatchObject({ instanceId: instance, records: 1, tokens: 0.125 })
  expect(await twin.used(instance, 'ACT-1')).toBe(0.5)
  const verified = await run(['archive', 'verify', place], env)
  expect(verified).toMatchObject({ code: 0, err: '' })
  expect(verified.out).toContain('3 records from the first record')
  expect((await archive(place, env)).out).toContain('1 record in 1 archive in')
  expect((await archive(place, env)).out).toBe(`0 records in 0 archives in ${place}.\n`)
  const audit = await twin.call('GET', '/edge/api/v1/audit?action=ARCHIVE_USAGE')
  expect(JSON.stringify(audit.body)).toContain(place)
}

describe('tallygate usage archive', () => {
  it('moves the records of a running cloud to a directory, which returns the export', () => moves(folder))

  it('says that it was stopped, and continues in the next run', async () => {
    const stop = new AbortController()
    const stdout = { write: () => stop.abort() }
    const args = ['--to', folder, '--until', String(twin.now + 1), '--store-path', twin.settings.store.path]
    const stopped = await tallygate(['usage', 'archive', ...args], { stdout, stop: () => stop.signal })
    expect(stopped).toMatchObject({ code: 130, err: 'Stopped. Run the command again to continue.\n' })
    expect(await archive(folder)).toMatchObject({ code: 0, err: '' })
    expect((await run(['archive', 'verify', folder])).out).toContain('3 records from the first record')
  })

  it('shows a changed file, with an exit code', async () => {
    const place = join(folder, 'archive')
    await archive(place)
    const file = readdirSync(place).find((name) => name.endsWith('.zst'))!
    writeFileSync(join(place, file), 'x')
    const verified = await run(['archive', 'verify', place])
    expect(verified).toMatchObject({ code: 65, out: '' })
    expect(verified.err).toMatch(/^tallygate: ARCHIVE_DAMAGED: /)
    expect(verified.err).toContain(`the file ${file} was changed`)
    expect((await run(['export', '--from-archive', place])).err).toContain('ARCHIVE_DAMAGED')
  })

  it('names the cursor with which a place begins that follows another one', async () => {
    const [first, second] = [join(folder, 'first'), join(folder, 'second')]
    await archive(first)
    await twin.access(instance, { Print: 1 })
    await archive(second)
    const cursor = /next cursor: (\d+)/.exec((await run(['export', '--from-archive', first])).err)![1]!
    for (const verb of ['export', 'totals']) {
      const refused = await run([verb, '--from-archive', second, '--since', '1970-01-01'])
      expect(refused).toMatchObject({ code: 66, out: '' })
      expect(refused.err).toMatch(new RegExp(`^tallygate: USAGE_ARCHIVED: [\\s\\S]* use --after ${cursor}\\.`))
    }
    const rest = await run(['totals', '--from-archive', second, '--after', cursor, '--by', 'instance', '--json'])
    expect(JSON.parse(rest.out)).toMatchObject({ records: 1, tokens: 0.125 })
    const beyond = await run(['export', '--from-archive', first, '--after', '999999999'])
    expect(beyond.err).toContain('CURSOR_UNKNOWN')
  })

  it('says what is missing', async () => {
    expect((await run(['archive', '--until', '2026-01-01'])).err).toContain('usage.archive')
    expect((await run(['archive', '--to', folder])).err).toContain('usage.retention')
    expect((await run(['archive', 'verify', folder])).err).toContain(
      `ARCHIVE_UNAVAILABLE: ${folder} contains no archive`,
    )
    expect((await run(['export', '--from-archive', folder])).err).toContain(
      `ARCHIVE_UNAVAILABLE: ${folder} contains no archive`,
    )
    const file = join(folder, 'file')
    writeFileSync(file, '')
    const unlisted = `ARCHIVE_UNAVAILABLE: ${file} cannot be read: it is not a directory. `
    expect((await run(['archive', 'verify', file])).err).toContain(unlisted)
    expect((await run(['export', '--from-archive', file])).err).toContain(unlisted)
    expect((await run(['export', '--from-archive', folder, '--instance', 'Lab'])).err).toContain(
      '--instance takes an id',
    )
    const nowhere = ['--to', folder, '--until', '2026-01-01', '--store-path', join(folder, 'none')]
    expect((await run(['archive', ...nowhere])).err).toContain('does not exist')
    expect(existsSync(join(folder, 'none'))).toBe(false)
    expect((await archive('s3://usage/a')).err).toContain('s3.access_key_id')
  })
})

describe('tallygate usage archive with a bucket', () => {
  const server = s3()
  const inS3 = () => ({
    TALLYGATE_CLOUD_S3_ENDPOINT: server.url,
    TALLYGATE_CLOUD_S3_ACCESS_KEY_ID: S3_TEST.accessKeyId,
    TALLYGATE_CLOUD_S3_SECRET_ACCESS_KEY: S3_TEST.secretAccessKey,
  })

  it('moves the records of a running cloud to it, which returns the export', () =>
    moves(`s3://${S3_TEST.bucket}/${folder.slice(-6)}`, inS3()))

  it('shows no credentials if they are wrong', async () => {
    const wrong = await archive('s3://usage/a', { ...inS3(), TALLYGATE_CLOUD_S3_SECRET_ACCESS_KEY: 'wrong-secret' })
    expect(wrong.err).toMatch(/ARCHIVE_UNAVAILABLE[\s\S]*SignatureDoesNotMatch/)
    expect(wrong.err + wrong.out).not.toContain('wrong-secret')
  })
})

it.each(['s3://', 's3://ab/usage', 's3://Usage/plant', 's3://usage/plant 7'])(
  'names the characters that a bucket and a prefix can have, for %s',
  async (place) => {
    const { code, err } = await archive(place)
    expect([code, err]).toEqual([78, expect.stringContaining('3 to 63 lowercase letters') as string])
  },
)

it.each(['ftp://host/usage', 'S3://usage', 's3:/usage', 'file:///mnt/usage'])(
  'makes no directory of the address %s, and moves nothing into it',
  async (place) => {
    const { code, err } = await archive(place)
    expect([code, err]).toEqual([78, expect.stringContaining('a directory or s3://bucket/prefix') as string])
    expect(existsSync(place)).toBe(false)
    expect((await exported()).code).toBe(0)
  },
)
