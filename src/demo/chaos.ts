/** Plans the disturbances of `--chaos`. The same seed disturbs the same requests. */
import { writeFileSync } from 'node:fs'
import type { Presenter } from './presenter.ts'
import type { Proxy } from './proxy.ts'
import type { Random } from './random.ts'
import type { DisturbanceKind } from './result.ts'
import type { Agent, Twin } from './services.ts'

const DAY_MS = 86_400_000

export interface Disturbance {
  readonly kind: DisturbanceKind
  /** Number of answered requests at which it starts (and, if it lasts, ends). */
  readonly from: number
  readonly until: number
  readonly clockErrorMs: number
}

const TIMES: Readonly<Record<DisturbanceKind, number>> = {
  'agent killed': 4,
  'twin killed': 3,
  'both killed': 2,
  'clock set': 6,
  'network slow': 2,
  'answers lost': 3,
  'network cut': 2,
}

/** Duration of network disturbances in requests; none are planned while the network is cut anyway. */
const LASTS = 60
const ofNetwork: ReadonlySet<DisturbanceKind> = new Set(['network slow', 'answers lost', 'network cut'])

const CLOCK_ERRORS_MS = [-30 * DAY_MS, 90 * DAY_MS, -20 * 365 * DAY_MS, 0, 400 * DAY_MS, -3_600_000]

export function planChaos(random: Random, requests: number, cutOff: readonly [number, number]): readonly Disturbance[] {
  const plan: Disturbance[] = []
  for (const [kind, times] of Object.entries(TIMES) as [DisturbanceKind, number][]) {
    for (let time = 0; time < times; time += 1) {
      const isOfNetwork = ofNetwork.has(kind)
      const end = requests - (isOfNetwork ? LASTS : 1)
      let from = random.between(1, end)
      while (isOfNetwork && from + LASTS > cutOff[0] && from < cutOff[1]) from = random.between(1, end)
      plan.push({ kind, from, until: isOfNetwork ? from + LASTS : from, clockErrorMs: 0 })
    }
  }
  plan.sort((a, b) => a.from - b.from)
  let set = 0
  return plan.map((disturbance) =>
    disturbance.kind === 'clock set'
      ? { ...disturbance, clockErrorMs: CLOCK_ERRORS_MS[set++ % CLOCK_ERRORS_MS.length] ?? 0 }
      : disturbance,
  )
}

export interface Victims {
  readonly agent: Agent
  readonly twin: Twin
  readonly network: readonly Proxy[]
  readonly clockErrorFile: string
  readonly presenter: Presenter
}

export class Chaos {
  readonly #plan: readonly Disturbance[]
  readonly #victims: Victims
  readonly #done = new Map<DisturbanceKind, number>()
  #work: Promise<unknown> = Promise.resolve()

  constructor(plan: readonly Disturbance[], victims: Victims) {
    this.#plan = plan
    this.#victims = victims
  }

  at(answered: number, time: string): void {
    for (const disturbance of this.#plan) {
      if (disturbance.from === answered) this.#begin(disturbance, time)
      if (disturbance.until === answered && disturbance.until > disturbance.from) this.#end(disturbance)
    }
  }

  async over(): Promise<void> {
    const { agent, twin, network } = this.#victims
    await this.#work
    for (const proxy of network) proxy.behave('well')
    await Promise.all([agent.restarted(), twin.restarted()])
  }

  counts(): ReadonlyMap<DisturbanceKind, number> {
    return this.#done
  }

  #begin({ kind, clockErrorMs }: Disturbance, time: string): void {
    const { agent, twin, network, clockErrorFile, presenter } = this.#victims
    this.#done.set(kind, (this.#done.get(kind) ?? 0) + 1)
    const tell = (what: string): void => presenter.step(`  ${time.slice(0, 5)}  ${what}`)
    switch (kind) {
      case 'agent killed':
        tell('the agent is killed (SIGKILL), and starts again')
        agent.killAndRestart()
        break
      case 'twin killed':
        tell('the cloud is killed (SIGKILL), and starts again')
        twin.killAndRestart()
        break
      case 'both killed':
        tell('agent and cloud are killed at once')
        agent.killAndRestart()
        twin.killAndRestart()
        break
      case 'clock set':
        tell(`the clock of the device is set ${offText(clockErrorMs)}`)
        writeFileSync(clockErrorFile, String(clockErrorMs))
        break
      case 'network slow':
        tell('the network between them takes 300 ms each way')
        for (const proxy of network) proxy.behave('slowly')
        break
      case 'answers lost':
        tell("the network carries requests, and loses the cloud's answers")
        for (const proxy of network) proxy.behave('one way')
        break
      case 'network cut':
        tell('the network is cut')
        this.#after(() => Promise.all(network.map((proxy) => proxy.cut())))
    }
  }

  #end({ kind }: Disturbance): void {
    const { network } = this.#victims
    if (kind === 'network cut') this.#after(() => Promise.all(network.map((proxy) => proxy.restore())))
    else for (const proxy of network) proxy.behave('well')
  }

  #after(work: () => Promise<unknown>): void {
    this.#work = this.#work.then(work)
  }
}

function offText(ms: number): string {
  if (ms === 0) return 'right again'
  const days = Math.abs(ms) / DAY_MS
  const amount = days >= 1 ? `${Math.round(days)} days` : `${Math.round(days * 24)} h`
  return `${amount} ${ms > 0 ? 'ahead' : 'back'}`
}
