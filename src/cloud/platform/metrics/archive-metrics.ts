import { Counter, Gauge, type Registry } from 'prom-client'
import type { ArchiveState } from '../../usage/archive/archive-daily.ts'

/** Of a cloud that archives its usage; without a retention there are no values. */
export class ArchiveMetrics {
  readonly #records: Counter
  readonly #failed: Gauge
  readonly #lastSuccess: Gauge

  constructor(registry: Registry) {
    const registers = [registry]
    this.#records = new Counter({
      name: 'tallygate_usage_archived_records_total',
      help: 'Usage records that this node has moved to archives.',
      registers,
    })
    this.#failed = new Gauge({
      name: 'tallygate_usage_archive_failed',
      help: 'Whether the last archiving of usage by this node failed.',
      registers,
    })
    this.#lastSuccess = new Gauge({
      name: 'tallygate_usage_archive_last_success_timestamp_seconds',
      help: 'When all usage older than the retention was last archived.',
      registers,
    })
    this.#failed.remove()
    this.#lastSuccess.remove()
  }

  archived(records: number): void {
    this.#records.inc(records)
  }

  state({ finishedAt, failed }: ArchiveState): void {
    this.#failed.set(failed ? 1 : 0)
    if (finishedAt !== null) this.#lastSuccess.set(finishedAt / 1_000)
  }
}
