/** The devices, in processes of their own. */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import type { Command, Enrollment, Reply } from './device-process.ts'
import type { Load, Plan } from './load.ts'

export interface Measured extends Load {
  /** Processor time of the device processes, s. */
  readonly deviceSeconds: number
}

type Measurable = Extract<Command, { plan: Plan }>['kind']

export class Fleet implements Disposable {
  readonly #children: readonly ChildProcess[]
  readonly #size: number
  /** Sums over all devices by account, micro-tokens. */
  balances = new Map<string, { readonly granted: bigint; readonly used: bigint }>()
  refused = 0

  constructor(size: number, processes: number) {
    this.#size = size
    this.#children = Array.from({ length: processes }, () => fork(new URL('device-process.ts', import.meta.url)))
  }

  #share(index: number): number {
    const count = this.#children.length
    return Math.floor(((index + 1) * this.#size) / count) - Math.floor((index * this.#size) / count)
  }

  /** @returns processor time of the devices, s */
  async make(): Promise<number> {
    return secondsOf(await this.#ask((index) => ({ kind: 'make', count: this.#share(index) })))
  }

  /** @returns processor time of the devices, s */
  async seal(isShared: boolean, hasEntries: boolean, wanted: bigint): Promise<number> {
    return secondsOf(await this.#ask(() => ({ kind: 'seal', isShared, hasEntries, wanted: `${wanted}` })))
  }

  async enroll(
    enrollments: readonly Enrollment[],
    sharedId: string,
    addresses: readonly string[],
    plan: Plan,
  ): Promise<Measured> {
    let given = 0
    return merged(
      await this.#ask((index) => ({
        kind: 'enroll',
        enrollments: enrollments.slice(given, (given += this.#share(index))),
        sharedId,
        addresses,
        plan: this.#part(plan),
      })),
    )
  }

  async send(kind: Exclude<Measurable, 'enroll'>, plan: Plan): Promise<Measured> {
    return merged(await this.#ask(() => ({ kind, plan: this.#part(plan) })))
  }

  [Symbol.dispose](): void {
    for (const child of this.#children) child.kill()
  }

  #part({ connections, rate }: Plan): Plan {
    const count = this.#children.length
    return { connections: Math.max(1, Math.floor(connections / count)), rate: rate === null ? null : rate / count }
  }

  async #ask(commandOf: (index: number) => Command): Promise<readonly Reply[]> {
    const replies = await Promise.all(
      this.#children.map(async (child, index) => {
        child.send(commandOf(index))
        const [reply] = (await once(child, 'message')) as [Reply]
        if (reply.error !== null) throw new Error(reply.error)
        return reply
      }),
    )
    this.balances = new Map()
    for (const { balances } of replies) {
      for (const [account, { granted, used }] of Object.entries(balances)) {
        const sum = this.balances.get(account) ?? { granted: 0n, used: 0n }
        this.balances.set(account, { granted: sum.granted + BigInt(granted), used: sum.used + BigInt(used) })
      }
    }
    this.refused = replies.reduce((sum, { refused }) => sum + refused, 0)
    return replies
  }
}

function secondsOf(replies: readonly Reply[]): number {
  return replies.reduce((sum, { processorSeconds }) => sum + processorSeconds, 0)
}

function merged(replies: readonly Reply[]): Measured {
  const loads = replies.flatMap(({ load }) => (load === null ? [] : [load]))
  const sum = (of: (load: Load) => number): number => loads.reduce((all, load) => all + of(load), 0)
  const retried: Record<string, number> = {}
  for (const load of loads) {
    for (const [reason, count] of Object.entries(load.retried)) retried[reason] = (retried[reason] ?? 0) + count
  }
  return {
    latencies: loads.flatMap(({ latencies }) => latencies),
    attempts: sum(({ attempts }) => attempts),
    retried,
    bytesSent: sum(({ bytesSent }) => bytesSent),
    bytesReceived: sum(({ bytesReceived }) => bytesReceived),
    from: Math.min(...loads.map(({ from }) => from)),
    to: Math.max(...loads.map(({ to }) => to)),
    deviceSeconds: secondsOf(replies),
  }
}
