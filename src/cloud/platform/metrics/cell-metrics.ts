import { Gauge, type Registry } from 'prom-client'

export class CellMetrics {
  readonly #up: Gauge
  readonly #behind: Gauge

  constructor(registry: Registry) {
    const registers = [registry]
    this.#up = new Gauge({
      name: 'tallygate_cell_up',
      help: 'Whether the database of the cell responds to this node.',
      registers,
    })
    this.#behind = new Gauge({
      name: 'tallygate_cell_behind',
      help: 'Whether the cell may lack changes of rate tables, keys or configuration.',
      registers,
    })
  }

  set(isUp: boolean, isBehind: boolean): void {
    this.#up.set(isUp ? 1 : 0)
    this.#behind.set(isBehind ? 1 : 0)
  }
}
