/** What the machine has left, as far as the system tells: null where it does not. */
import { readFileSync } from 'node:fs'
import { readFile, stat, statfs } from 'node:fs/promises'
import { join } from 'node:path'
import type { DeviceReportWire } from '../../../protocol/local/report.ts'

/** @param directory of the state */
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

/**
 * Bytes that this process has sent to storage, by the kernel's account: pages that it made dirty, of which tmpfs has none. What the
 * file system writes for itself is not in it.
 */
export function writtenBytes(): number | null {
  try {
    const io = readFileSync('/proc/self/io', 'utf8')
    const written = /^write_bytes: (\d+)$/m.exec(io)?.[1]
    return written === undefined ? null : Number(written)
  } catch {
    return null
  }
}

/** Bytes in a line of the form `Name:   12 kB`. */
function sizeIn(text: string, name: string): number | null {
  const found = new RegExp(`^${name}: +(\\d+) kB$`, 'm').exec(text)?.[1]
  return found === undefined ? null : Number(found) * 1024
}
