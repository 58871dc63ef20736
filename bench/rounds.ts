/**
 * Alternating rounds: every contender starts with an empty ledger, is warmed up, loaded, killed and audited. All see
 * the same disturbances, so ratios within a round are meaningful.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Contender } from './contenders/contender.ts'
import { withPlace } from './contenders/place.ts'
import type { LoadReport } from './load/closed-loop.ts'
import type { Target } from './load/dialect.ts'
import { LoadGenerator } from './load/generator.ts'
import { machineSeconds, memoryUse, processorSeconds } from './measure/process-use.ts'

export interface Plan {
  readonly contenders: readonly Contender[]
  readonly connections: readonly number[]
  readonly rounds: number
  readonly durationMs: number
  readonly warmupMs: number
  /** Pause before the memory of a started server is measured. */
  readonly restMs: number
  readonly directory: string
  /** Each connection sends the same body again and again. */
  readonly repeatsBodies: boolean
}

export interface Measurement extends LoadReport {
  readonly contender: string
  readonly connections: number
  readonly round: number
  readonly serverBusy: number
  /** Processors used by others than server and generator: above about 0.1 they disturb. */
  readonly othersBusy: number
}

export interface Account {
  readonly contender: string
  readonly round: number
  readonly acknowledged: number
  /** Null: the server records nothing. */
  readonly recorded: number | null
  readonly memory: Memory
}

export interface Memory {
  readonly atRest: number
  readonly underLoad: number
}

export interface Results {
  readonly measurements: readonly Measurement[]
  readonly accounts: readonly Account[]
}

/** Connections are opened in the first part of a measurement, which is not counted. */
const RAMP_MS = 100

/** After each measurement, the load continues while memory is read: reading takes milliseconds of a processor that the server needs. */
const MEMORY_MS = 300

/**
 * @param tell receives progress messages
 * @throws Error if a server refuses, or its records differ from its acknowledgements
 */
export async function runRounds(plan: Plan, tell: (progress: string) => void): Promise<Results> {
  const measurements: Measurement[] = []
  const accounts: Account[] = []
  const generator = new LoadGenerator()
  try {
    for (let round = 1; round <= plan.rounds; round += 1) {
      for (const contender of plan.contenders) {
        tell(`round ${round} of ${plan.rounds}: ${contender.name}`)
        const outcome = await runOne(plan, contender, round, generator)
        measurements.push(...outcome.measurements)
        accounts.push(outcome.account)
      }
    }
  } finally {
    generator.stop()
  }
  return { measurements, accounts }
}

async function runOne(plan: Plan, contender: Contender, round: number, generator: LoadGenerator) {
  return withPlace(plan.directory, async (place) => {
    const running = await contender.start(place)
    const measurements: Measurement[] = []
    let acknowledged = 0
    const memory = { atRest: 0, underLoad: 0 }
    let recorded: number | null = null
    try {
      const { pid } = running
      const target = plan.repeatsBodies ? repeating(running.target) : running.target
      await delay(plan.restMs)
      memory.atRest = memoryUse(pid).total
      const warmth = { target, connections: Math.max(...plan.connections), warmupMs: 0, durationMs: plan.warmupMs }
      acknowledged += (await generator.run(warmth)).acknowledged
      for (const connections of plan.connections) {
        const before = { server: processorSeconds(pid), machine: machineSeconds(), at: performance.now() }
        const report = await generator.run({ target, connections, warmupMs: RAMP_MS, durationMs: plan.durationMs })
        const elapsed = (performance.now() - before.at) / 1000
        const serverBusy = (processorSeconds(pid) - before.server) / elapsed
        const othersBusy = Math.max(0, (machineSeconds() - before.machine) / elapsed - serverBusy - report.busy)
        acknowledged += report.acknowledged
        measurements.push({ ...report, contender: contender.name, connections, round, serverBusy, othersBusy })
        const loading = generator.run({ target, connections, warmupMs: 0, durationMs: MEMORY_MS })
        // A failed load is reported below.
        await Promise.race([delay(MEMORY_MS / 2), loading.catch(() => undefined)])
        memory.underLoad = Math.max(memory.underLoad, memoryUse(pid).total)
        acknowledged += (await loading).acknowledged
      }
    } finally {
      recorded = await running.killAndCount()
    }
    if (recorded !== null && recorded !== acknowledged) {
      throw new Error(`${contender.name} acknowledged ${acknowledged} debits and has recorded ${recorded}`)
    }
    return { measurements, account: { contender: contender.name, round, acknowledged, recorded, memory } }
  })
}

function repeating(target: Target): Target {
  return target.protocol === 'http' ? { ...target, serial: '' } : target
}
