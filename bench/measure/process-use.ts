import { readFileSync } from 'node:fs'

/** Clock ticks per second of /proc, equal on every Linux that Node supports. */
const TICKS = 100

/** Processor time of all threads, s. */
export function processorSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) / TICKS
}

/** Processor time of the machine, s; time stolen by the host counts as used. */
export function machineSeconds(): number {
  const [, user, nice, system, , , irq, softIrq, steal] = (readFileSync('/proc/stat', 'utf8').split('\n')[0] ?? '')
    .split(/ +/)
    .map(Number)
  return [user, nice, system, irq, softIrq, steal].reduce<number>((sum, each) => sum + (each ?? 0), 0) / TICKS
}

export interface MemoryUse {
  /** Proportional set size, bytes: private memory plus a share of shared memory. */
  readonly total: number
  /** The part of it that no file backs, bytes. */
  readonly anonymous: number
}

export function memoryUse(pid: number): MemoryUse {
  const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8')
  return { total: kibibytes(text, 'Pss', pid), anonymous: kibibytes(text, 'Pss_Anon', pid) }
}

/** Highest resident set size since the start, bytes. */
export function peakResidentSize(pid: number): number {
  return kibibytes(readFileSync(`/proc/${pid}/status`, 'utf8'), 'VmHWM', pid)
}

function kibibytes(text: string, name: string, pid: number): number {
  const kib = new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(text)?.[1]
  if (kib === undefined) throw new Error(`the kernel does not tell ${name} of process ${pid}`)
  return Number(kib) * 1024
}
