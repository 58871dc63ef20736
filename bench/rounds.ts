/**
 * Alternating rounds: in each, every contender starts with an empty ledger, is warmed up, loaded with each number of
 * connections, killed, and held to account. Contenders share the machine's moods that way, so that ratios of one round
 * mean something where absolute figures do not.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Contender } from './contenders/contender.ts'
import { withPlace } from './contenders/place.ts'
import type { LoadReport } from './load/closed-loop.ts'
import { LoadGenerator } from './load/generator.ts'
import { machineSeconds, processorSeconds, proportionalSetSize } from './measure/process-use.ts'

export interface Plan {
  readonly contenders: readonly Contender[]
  readonly connections: readonly number[]
  readonly rounds: number
  readonly durationMs: number
  readonly warmupMs: number
  /** A server that has started is left alone for so long before its memory is read. */
  readonly restMs: number
  /** Where each start gets a directory of its own. */
  readonly directory: string
}

export interface Measurement extends LoadReport {
  readonly contender: string
  readonly connections: number
  readonly round: number
  /** Processors that the server kept busy. */
  readonly serverBusy: number
  /** Processors that programs apart from server and generator kept busy: above 0.1 or so they disturb. */
  readonly othersBusy: number
}

export interface Account {
  readonly contender: string
  readonly round: number
  readonly acknowledged: number
  readonly recorded: number
  readonly memory: Memory
}

/** Proportional set sizes of a server's process, bytes. */
export interface Memory {
  /** Started, and not asked for anything yet. */
  readonly atRest: number
  /** The largest that was seen in the middle of a measurement. */
  readonly underLoad: number
}

export interface Results {
  readonly measurements: readonly Measurement[]
  readonly accounts: readonly Account[]
}

/** The first load of a measurement is not counted: connections are made in it. */
const RAMP_MS = 100

/**
 * @param tell hears of the progress
 * @throws Error when a server refuses, or when what it recorded is not what it acknowledged
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
    let recorded = 0
    try {
      const { target, pid } = running
      await delay(plan.restMs)
      memory.atRest = proportionalSetSize(pid)
      const warmth = { target, connections: Math.max(...plan.connections), warmupMs: 0, durationMs: plan.warmupMs }
      acknowledged += (await generator.run(warmth)).acknowledged
      for (const connections of plan.connections) {
        const before = { server: processorSeconds(pid), machine: machineSeconds(), at: performance.now() }
        const loading = generator.run({ target, connections, warmupMs: RAMP_MS, durationMs: plan.durationMs })
        // A load that fails is heard of below.
        await Promise.race([delay(RAMP_MS + plan.durationMs / 2), loading.catch(() => undefined)])
        memory.underLoad = Math.max(memory.underLoad, proportionalSetSize(pid))
        const report = await loading
        const elapsed = (performance.now() - before.at) / 1000
        const serverBusy = (processorSeconds(pid) - before.server) / elapsed
        const othersBusy = Math.max(0, (machineSeconds() - before.machine) / elapsed - serverBusy - report.busy)
        acknowledged += report.acknowledged
        measurements.push({ ...report, contender: contender.name, connections, round, serverBusy, othersBusy })
      }
    } finally {
      recorded = await running.killAndCount()
    }
    if (recorded !== acknowledged) {
      throw new Error(`${contender.name} acknowledged ${acknowledged} debits and has recorded ${recorded}`)
    }
    return { measurements, account: { contender: contender.name, round, acknowledged, recorded, memory } }
  })
}
