/**
 * `npm run bench:delivery`: what it costs the cloud when devices deliver what they recorded offline, with 1 device and
 * with 16. See docs/explanation/benchmarks.md.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import Database from 'better-sqlite3'
import { orUsage } from '../scripts/or-usage.ts'
import { wholeNumber, wholeNumbers } from '../scripts/whole-number.ts'
import { DeliveringDevice } from './delivery/device.ts'
import { peakResidentSize, processorSeconds } from './measure/process-use.ts'
import { Site } from './push/site.ts'

const USAGE = `npm run bench:delivery -- [OPTION...]

Devices deliver entries that they recorded offline to a cloud on SQLite.

  --entries N       entries of all devices together, in each run (20000)
  --devices LIST    numbers of devices, one run for each (1,16)
  --state-dir DIR   where the cloud keeps its data; not tmpfs (.tallygate)
  --help            this text
`

const options = orUsage(USAGE, () => {
  const { values } = parseArgs({
    options: {
      entries: { type: 'string', default: '20000' },
      devices: { type: 'string', default: '1,16' },
      'state-dir': { type: 'string', default: '.tallygate' },
    },
  })
  return {
    entries: wholeNumber('--entries', values.entries),
    devices: wholeNumbers('--devices', values.devices),
    parent: resolve(values['state-dir']),
  }
})

/** Bytes of the pages in use. */
function databaseBytes(directory: string): number {
  const database = new Database(join(directory, 'cloud', 'twin.db'), { readonly: true })
  try {
    const read = (pragma: string): number => database.pragma(pragma, { simple: true }) as number
    return (read('page_count') - read('freelist_count')) * read('page_size')
  } finally {
    database.close()
  }
}

async function run(count: number, entries: number, directory: string): Promise<void> {
  const site = await Site.open(directory)
  const devices: DeliveringDevice[] = []
  try {
    await site.change(1_000_000_000)
    const each = Math.ceil(entries / count)
    for (let index = 0; index < count; index += 1) {
      const device = await DeliveringDevice.join(site.url, site.instanceId, await site.enrollmentToken(), each)
      devices.push(device)
      await device.record(each)
    }
    const before = {
      bytes: databaseBytes(directory),
      processor: processorSeconds(site.cloudPid),
      at: performance.now(),
    }
    const sent = await Promise.all(devices.map((device) => device.deliver()))
    const seconds = (performance.now() - before.at) / 1000
    const processor = processorSeconds(site.cloudPid) - before.processor
    const peak = peakResidentSize(site.cloudPid)
    const all = each * count
    const perEntry = (value: number): string => (value / all).toFixed(1)
    console.log(
      [
        `${count} device(s), ${all} entries: ${seconds.toFixed(1)} s`,
        `cloud CPU ${perEntry(processor * 1e6)} µs/entry`,
        `database ${perEntry(databaseBytes(directory) - before.bytes)} bytes/entry`,
        `sent ${perEntry(sent.reduce((sum, bytes) => sum + bytes, 0))} bytes/entry`,
        `peak memory of the cloud ${(peak / 1e6).toFixed(0)} MB`,
      ].join(', '),
    )
  } finally {
    for (const device of devices) device[Symbol.dispose]()
    await site[Symbol.asyncDispose]()
  }
}

mkdirSync(options.parent, { recursive: true })
for (const count of options.devices) {
  const directory = mkdtempSync(`${options.parent}/delivery-`)
  try {
    await run(count, options.entries, directory)
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}
