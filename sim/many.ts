import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'
import type { PlanOptions } from './draw/plan.ts'
import type { RunResult } from './run.ts'

export interface SeedOptions {
  readonly seed: number
  readonly options: PlanOptions
}

export interface SimulationOptions {
  readonly runs: readonly SeedOptions[]
  readonly defect: string | null
  /** 0: one per processor. */
  readonly threads: number
  /** Returns false to start no more seeds. */
  readonly onResult: (result: RunResult, options: SeedOptions) => boolean
}

export async function runMany({ runs, defect, threads, onResult }: SimulationOptions): Promise<void> {
  const waiting = [...runs]
  const count = Math.min(waiting.length, threads > 0 ? threads : availableParallelism())
  let goesOn = true
  const work = (): Promise<void> =>
    new Promise((resolve, reject) => {
      const worker = new Worker(new URL('./seed-worker.ts', import.meta.url), { workerData: { defect } })
      let next: SeedOptions | undefined
      const start = (): void => {
        next = goesOn ? waiting.shift() : undefined
        if (next === undefined) void worker.terminate().then(() => resolve(), reject)
        else worker.postMessage(next)
      }
      worker.on('message', (result: RunResult) => {
        if (next !== undefined) goesOn &&= onResult(result, next)
        start()
      })
      worker.on('error', (cause) => {
        reject(new Error(`seed ${next?.seed} ended its thread: ${String(cause)}`, { cause }))
      })
      start()
    })
  await Promise.all(Array.from({ length: count }, work))
}
