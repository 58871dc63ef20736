/** Free resources of the machine; null where the system does not report them. */
import { readFile, stat, statfs } from 'node:fs/promises'
import { join } from 'node:path'
import { fileText } from '../../../platform/file-text.ts'
import type { DeviceReportWire } from '../../../protocol/local/report.ts'

export async function lookAtMachine(directory: string): Promise<DeviceReportWire['machine']> {
  const [disk, memory, ownMemory, ledgerSize] = await Promise.all([
    statfs(directory).catch(() => null),
    readFile('/proc/meminfo', 'utf8').catch(() => ''),
    readFile('/proc/self/smaps_rollup', 'utf8').catch(() => ''),
    stat(join(directory, 'journal.db')).then(
      ({ size }) => size,
      () => null,
    ),
  ])
  return {
    diskFree: disk === null ? null : disk.bavail * disk.bsize,
    diskTotal: disk === null ? null : disk.blocks * disk.bsize,
    ledgerSize,
    memoryOfAgent: sizeIn(ownMemory, 'Pss'),
    memoryFree: sizeIn(memory, 'MemAvailable'),
    memoryTotal: sizeIn(memory, 'MemTotal'),
  }
}

/** According to the kernel: dirtied pages, without tmpfs and without the file system's own writes. */
export function writtenBytes(): number | null {
  const written = /^write_bytes: (\d+)$/m.exec(fileText('/proc/self/io') ?? '')?.[1]
  return written === undefined ? null : Number(written)
}

/** Bytes in a line such as `Name:   12 kB`. */
export function sizeIn(text: string, name: string): number | null {
  const found = new RegExp(`^${name}: +(\\d+) kB$`, 'm').exec(text)?.[1]
  return found === undefined ? null : Number(found) * 1024
}
