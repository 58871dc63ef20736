/** What the machine has left, as far as the system tells: null where it does not. */
import { readFile, stat, statfs } from 'node:fs/promises'
import { join } from 'node:path'
import type { DeviceReportWire } from '../../../protocol/local/report.ts'

/** @param directory of the state */
export async function lookAtMachine(directory: string): Promise<DeviceReportWire['machine']> {
  const [disk, memory, ledgerSize] = await Promise.all([
    statfs(directory).catch(() => null),
    readFile('/proc/meminfo', 'utf8').catch(() => ''),
    stat(join(directory, 'journal.db')).then(
      ({ size }) => size,
      () => null,
    ),
  ])
  const inMemory = (name: string): number | null => {
    const found = new RegExp(`^${name}: +(\\d+) kB$`, 'm').exec(memory)?.[1]
    return found === undefined ? null : Number(found) * 1024
  }
  return {
    diskFree: disk === null ? null : disk.bavail * disk.bsize,
    diskTotal: disk === null ? null : disk.blocks * disk.bsize,
    ledgerSize,
    memoryOfAgent: process.memoryUsage.rss(),
    memoryFree: inMemory('MemAvailable'),
    memoryTotal: inMemory('MemTotal'),
  }
}
