/** What a process, or everything, uses of the machine, by the kernel's account. */
import { readFileSync } from 'node:fs'

/** Clock ticks per second of /proc, the same on every Linux that Node runs on. */
const TICKS = 100

/** Processor time of all threads so far, in seconds. */
export function processorSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) / TICKS
}

/** Processor time of everything on this machine so far, in seconds; time that the host took away counts as used. */
export function machineSeconds(): number {
  const [, user, nice, system, , , irq, softIrq, steal] = (readFileSync('/proc/stat', 'utf8').split('\n')[0] ?? '')
    .split(/ +/)
    .map(Number)
  return [user, nice, system, irq, softIrq, steal].reduce<number>((sum, each) => sum + (each ?? 0), 0) / TICKS
}

/** Proportional set size in bytes: private memory, and the process's share of what it has in common with others. */
export function proportionalSetSize(pid: number): number {
  const kib = /^Pss: +(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))?.[1]
  if (kib === undefined) throw new Error(`the kernel does not tell the memory of process ${pid}`)
  return Number(kib) * 1024
}
