// A cloud archives by itself: when, from which node, and what happens when it cannot.
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { pino } from 'pino'
import { DAY, HOUR, MINUTE, type Twin, openTwin } from '../harness.ts'

let twin: Twin
let place: string
let instance: string
const lines: Record<string, unknown>[] = []
const log = pino({ level: 'info', base: null }, { write: (line: string) => void lines.push(JSON.parse(line) as never) })

beforeEach(async () => {
  lines.length = 0
  twin = await openTwin((settings) => {
    place = join(settings.store.path, '..', 'archive')
    return { ...settings, usage: { ...settings.usage, retention: 30 * DAY, archive: place } }
  }, log)
  instance = await twin.instance()
  await twin.lineItem(instance)
  await twin.rates({ Print: 1 })
  await twin.access(instance, { Print: 1 })
})
afterEach(() => twin[Symbol.asyncDispose]())

const manifests = (): readonly string[] =>
  existsSync(place) ? readdirSync(place).filter((name) => name.endsWith('.manifest.json')) : []
const metric = async (name: string): Promise<string | undefined> =>
  (await (await fetch(twin.cloud.metricsAddress)).text())
    .split('\n')
    .find((line) => line.startsWith(`tallygate_${name} `))
    ?.split(' ')[1]
const later = (ms: number): Promise<void> => twin.advance(ms)

describe('usage.retention', () => {
  it('archives older records once a day, and logs it', async () => {
    await later(29 * DAY)
    expect(manifests()).toEqual([])
    await twin.access(instance, { Print: 1 })
    await later(DAY + HOUR)
    expect(manifests()).toHaveLength(1)
    expect(lines.find(({ msg }) => msg === 'usage was archived')).toMatchObject({ records: 1, place })
    expect(await metric('usage_archived_records_total')).toBe('1')
    expect(await metric('usage_archive_failed')).toBe('0')
    expect(Number(await metric('usage_archive_last_success_timestamp_seconds'))).toBe(twin.now / 1_000)
    const audit = await twin.call('GET', '/edge/api/v1/audit?action=ARCHIVE_USAGE')
    expect(JSON.stringify(audit.body)).toContain('CLOUD')
    await later(28 * DAY)
    await later(2 * HOUR)
    expect(manifests()).toHaveLength(1)
    await later(DAY)
    expect(manifests()).toHaveLength(2)
  })

  it('deletes nothing while the place cannot be written, and tries again after an hour', async () => {
    writeFileSync(place, 'not a directory')
    await later(31 * DAY)
    expect(lines.find(({ msg }) => msg === 'usage was not archived')).toMatchObject({
      err: { code: 'ARCHIVE_UNAVAILABLE' },
    })
    expect(await metric('usage_archive_failed')).toBe('1')
    expect(await twin.used(instance, 'ACT-1')).toBe(1)
    rmSync(place)
    mkdirSync(place)
    await later(MINUTE)
    expect(manifests()).toEqual([])
    await later(HOUR)
    expect(manifests()).toHaveLength(1)
    expect(await metric('usage_archive_failed')).toBe('0')
  })

  it('needs a place', async () => {
    const without = openTwin((settings) => ({ ...settings, usage: { ...settings.usage, retention: DAY } }))
    await expect(without).rejects.toThrow('usage.archive')
    const wrong = { retention: DAY, archive: 's3://usage' }
    const bucket = openTwin((settings) => ({ ...settings, usage: { ...settings.usage, ...wrong } }))
    await expect(bucket).rejects.toThrow('s3.access_key_id')
  })
})
