/** Runs seeds one at a time on its own thread. */
import { parentPort, workerData } from 'node:worker_threads'
import { defectNamed, withNeeds } from './defects/list.ts'
import { drawPlan } from './draw/plan.ts'
import type { SeedOptions } from './many.ts'
import { run } from './run.ts'
import { signAtOnce } from './world/signatures.ts'

if (parentPort === null) throw new Error('this module runs as a worker')
const port = parentPort
const { defect } = workerData as { defect: string | null }

signAtOnce()

port.on('message', ({ seed, options }: SeedOptions) => {
  void run(drawPlan(seed, withNeeds(options, defect)), { defect: defectNamed(defect) }).then((result) =>
    port.postMessage(result),
  )
})
