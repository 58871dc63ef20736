// Processes by their ids, as the kernel lists them.
import { readFileSync, readdirSync } from 'node:fs'

export function signalEach(pids: readonly number[], signal: NodeJS.Signals): void {
  for (const pid of pids) {
    try {
      process.kill(pid, signal)
    } catch {
      // It has just ended.
    }
  }
}

export function childrenOf(parent: number): readonly number[] {
  const isChild = (pid: string): boolean => {
    try {
      // After the name, which may contain anything: the state, then the parent.
      return Number(readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ')[1]) === parent
    } catch {
      return false
    }
  }
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && isChild(name))
    .map(Number)
}
