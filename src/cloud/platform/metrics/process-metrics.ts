/** Process metrics under Prometheus' standard names, read at each scrape without background work. */
import { readFileSync, readdirSync } from 'node:fs'
import { Counter, Gauge, type Registry } from 'prom-client'
import { orNull } from '../../../platform/or-null.ts'

export function collectProcessMetrics(registry: Registry): void {
  const registers = [registry]
  const read = (name: string, help: string, value: () => number | undefined): void => {
    new Gauge({
      name,
      help,
      registers,
      collect() {
        const now = value()
        if (now === undefined) this.remove()
        else this.set(now)
      },
    })
  }
  new Counter({
    name: 'process_cpu_seconds_total',
    help: 'CPU time of the process, user and system.',
    registers,
    collect() {
      const { user, system } = process.cpuUsage()
      this.reset()
      this.inc((user + system) / 1e6)
    },
  })
  const startedAt = performance.timeOrigin / 1_000
  read('process_start_time_seconds', 'Start time of the process since the Unix epoch.', () => startedAt)
  read('process_resident_memory_bytes', 'Resident memory.', () => process.memoryUsage.rss())
  read('process_open_fds', 'Open file descriptors.', openFiles)
  read('process_max_fds', 'Maximum number of open file descriptors.', openFilesMax)
  read('nodejs_heap_size_used_bytes', 'Used JavaScript heap.', () => process.memoryUsage().heapUsed)
  let before = performance.eventLoopUtilization()
  read(
    'nodejs_eventloop_utilization_ratio',
    'Share of the time since the last scrape that the event loop was busy.',
    () => {
      const now = performance.eventLoopUtilization()
      const { utilization } = performance.eventLoopUtilization(now, before)
      before = now
      return utilization
    },
  )
}

function openFiles(): number | undefined {
  return orNull(() => readdirSync('/proc/self/fd'))?.length
}

function openFilesMax(): number | undefined {
  const limits = orNull(() => readFileSync('/proc/self/limits', 'latin1')) ?? ''
  const [, limit] = /^Max open files +(\d+)/m.exec(limits) ?? []
  return limit === undefined ? undefined : Number(limit)
}
