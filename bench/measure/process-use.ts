import { readFileSync } from 'node:fs'

/** Clock ticks per second of /proc, equal on every Linux that Node supports. */
const TICKS = 100

/** Processor time of all threads of a process and of its descendants, s. */
export function processorSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  // Its own, and that of children that have ended.
  const ticks = [11, 12, 13, 14].reduce((sum, field) => sum + Number(fields[field]), 0)
  return ticks / TICKS + childrenOf(pid).reduce((sum, child) => sum + orZero(() => processorSeconds(child)), 0)
}

function childrenOf(pid: number): readonly number[] {
  const text = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim()
  return text === '' ? [] : text.split(' ').map(Number)
}

/** A child may end at any moment. */
function orZero(read: () => number): number {
  try {
    return read()
  } catch {
    return 0
  }
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

/** With its descendants. */
export function memoryUse(pid: number): MemoryUse {
  const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8')
  const sum = (name: string, of: (child: number) => number): number =>
    kibibytes(text, name, pid) + childrenOf(pid).reduce((all, child) => all + orZero(() => of(child)), 0)
  return {
    total: sum('Pss', (child) => memoryUse(child).total),
    anonymous: sum('Pss_Anon', (child) => memoryUse(child).anonymous),
  }
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
