/** Limits a process to a part of a processor, by a control group of Linux. Needs the rights of root. */
import { existsSync, mkdirSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** In each period, the process may run for its part. Short, so that it is never stopped for long. */
const PERIOD_US = 5_000

const ROOT = '/sys/fs/cgroup'

/**
 * The limit holds for all threads of the process, until it has ended and the returned function was called.
 * @param processors more than 0, for example 0.25
 * @throws Error if this machine does not permit it
 */
export function limitProcessor(pid: number, processors: number): () => void {
  const isSecondVersion = existsSync(join(ROOT, 'cgroup.controllers'))
  const group = join(ROOT, isSecondVersion ? '' : 'cpu', `tallygate-bench-${pid}`)
  const quotaUs = Math.round(PERIOD_US * processors)
  try {
    if (isSecondVersion) writeFileSync(join(ROOT, 'cgroup.subtree_control'), '+cpu')
    mkdirSync(group)
    if (isSecondVersion) writeFileSync(join(group, 'cpu.max'), `${quotaUs} ${PERIOD_US}`)
    else {
      writeFileSync(join(group, 'cpu.cfs_period_us'), String(PERIOD_US))
      writeFileSync(join(group, 'cpu.cfs_quota_us'), String(quotaUs))
    }
    writeFileSync(join(group, 'cgroup.procs'), String(pid))
  } catch (cause) {
    throw new Error(`this machine does not permit a limit of processors: ${String(cause)}`, { cause })
  }
  return () => rmdirSync(group)
}
