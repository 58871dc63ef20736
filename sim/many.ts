import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'
import type { PlanOptions } from './draw/plan.ts'
import type { RunResult } from './run.ts'

export interface SimulationOptions {
  readonly seeds: readonly number[]
  readonly options: PlanOptions
  readonly defect: string | null
  /** 0: one per processor. */
  readonly threads: number
  /** Returns false to start no more seeds. */
  readonly onResult: (result: RunResult) => boolean
}

export async function runMany({ seeds, options, defect, threads, onResult }: SimulationOptions): Promise<void> {
  const waiting = [...seeds]
  const count = Math.min(waiting.length, threads > 0 ? threads : availableParallelism())
  let goesOn = true
  const work = (): Promise<void> =>
    new Promise((resolve, reject) => {
      const worker = new Worker(new URL('./seed-worker.ts', import.meta.url), { workerData: { options, defect } })
      let seed: number | undefined
      const next = (): void => {
        seed = goesOn ? waiting.shift() : undefined
        if (seed === undefined) void worker.terminate().then(() => resolve(), reject)
        else worker.postMessage(seed)
      }
      worker.on('message', (result: RunResult) => {
        goesOn &&= onResult(result)
        next()
      })
      worker.on('error', (cause) => {
        reject(new Error(`seed ${seed} ended its thread: ${String(cause)}`, { cause }))
      })
      next()
    })
  await Promise.all(Array.from({ length: count }, work))
}
