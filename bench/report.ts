/** Summary of the rounds. Values are medians over the rounds; ratios are computed within each round first. */
import type { Account, Measurement, Results } from './rounds.ts'
import { median } from './load/latency.ts'
import type { Storage } from './measure/storage.ts'
import { table } from './table.ts'

export interface Conditions {
  readonly processors: string
  readonly node: string
  readonly sqlite: string
  readonly redis: string | null
  readonly storage: Storage
  readonly rounds: number
  readonly seconds: number
  readonly othersBusy: number
}

export interface Line {
  readonly connections: number
  readonly contender: string
  readonly perSecond: number
  readonly p50Ms: number
  readonly p99Ms: number
  readonly serverMicros: number
  readonly generatorMicros: number
  /** Ratio to the first baseline and to Redis; null: not available. */
  readonly toFloor: number | null
  readonly toRedis: number | null
  /** Ratio to the default agent; null for itself. */
  readonly toAgent: number | null
}

/** Targets of the agent at this number of connections. */
export const WANTED = { connections: 64, toRedis: 1.5, toFloor: 0.6 } as const

export function linesOf(
  results: Results,
  names: { readonly floor: string; readonly redis: string; readonly agent: string },
): readonly Line[] {
  const { measurements } = results
  const contenders = [...new Set(measurements.map(({ contender }) => contender))]
  return [...new Set(measurements.map(({ connections }) => connections))].flatMap((connections) =>
    contenders.map((contender): Line => {
      const own = measurements.filter((each) => each.contender === contender && each.connections === connections)
      const medianOf = (figure: (each: Measurement) => number): number => median(own.map(figure))
      const ratioTo = (other: string): number | null => {
        const base = measurements.filter((each) => each.contender === other && each.connections === connections)
        if (other === contender || base.length === 0) return null
        return median(
          own.flatMap(({ round, perSecond }) => {
            const same = base.find((each) => each.round === round)
            return same === undefined ? [] : [perSecond / same.perSecond]
          }),
        )
      }
      return {
        connections,
        contender,
        perSecond: medianOf(({ perSecond }) => perSecond),
        p50Ms: medianOf(({ latency }) => latency.p50),
        p99Ms: medianOf(({ latency }) => latency.p99),
        serverMicros: medianOf(({ serverBusy, perSecond }) => (serverBusy / perSecond) * 1e6),
        generatorMicros: medianOf(({ busy, perSecond }) => (busy / perSecond) * 1e6),
        toFloor: ratioTo(names.floor),
        toRedis: ratioTo(names.redis),
        toAgent: ratioTo(names.agent),
      }
    }),
  )
}

export function reportText(
  conditions: Conditions,
  lines: readonly Line[],
  accounts: readonly Account[],
  names: { readonly agent: string; readonly floor: string },
): string {
  const { storage } = conditions
  const head = table(
    [
      ['machine', `${conditions.processors}, Node ${conditions.node}, SQLite ${conditions.sqlite}`],
      [
        'storage',
        `${storage.fileSystem} on ${storage.device}; 4 KiB and fdatasync, median: appended ` +
          `${storage.appendMs.toFixed(3)} ms, overwritten ${storage.overwriteMs.toFixed(3)} ms`,
      ],
      ['redis', conditions.redis ?? 'not measured: redis-server is not on PATH'],
      [
        'load',
        `closed loop, ${conditions.rounds} alternating rounds of ${conditions.seconds} s, medians; ` +
          'every answer follows a durable commit, but for those of the agent that reserves ahead',
      ],
      ['disturbance', `other programs kept ${conditions.othersBusy.toFixed(2)} processors busy (median)`],
    ],
    2,
  )
  const body = table(
    [
      [
        'connections',
        'server',
        'decisions/s',
        'p50 ms',
        'p99 ms',
        'of agent',
        'of floor',
        'of redis',
        'server µs',
        'client µs',
      ],
      ...lines.map((line) => [
        String(line.connections),
        line.contender,
        Math.round(line.perSecond).toLocaleString('en'),
        line.p50Ms.toFixed(2),
        line.p99Ms.toFixed(2),
        ratioText(line.toAgent),
        ratioText(line.toFloor),
        ratioText(line.toRedis),
        line.serverMicros.toFixed(1),
        line.generatorMicros.toFixed(1),
      ]),
    ],
    2,
  )
  return [head, body, ...judgments(lines, names.agent), memoryText(accounts, names.floor), proof(accounts)].join('\n\n')
}

function judgments(lines: readonly Line[], agent: string): string[] {
  const line = lines.find((each) => each.contender === agent && each.connections === WANTED.connections)
  if (line === undefined) return []
  const judgment = (what: string, ratio: number | null, wanted: number): string => {
    if (ratio === null) return `  ${what}: wanted ${wanted.toFixed(1)}, not measured`
    return `  ${what}: wanted ${wanted.toFixed(1)}, measured ${ratio.toFixed(2)}: ${ratio >= wanted ? 'reached' : 'missed'}`
  }
  return [
    [
      `the agent with ${WANTED.connections} connections`,
      judgment('of redis', line.toRedis, WANTED.toRedis),
      judgment('of the floor', line.toFloor, WANTED.toFloor),
    ].join('\n'),
  ]
}

function memoryText(accounts: readonly Account[], floor: string): string {
  const contenders = [...new Set(accounts.map(({ contender }) => contender))]
  const mebibytes = (name: string, figure: (memory: Account['memory']) => number): number =>
    median(accounts.filter(({ contender }) => contender === name).map(({ memory }) => figure(memory))) / 2 ** 20
  const rows = contenders.map((name) => {
    const columns = [({ atRest }: Account['memory']) => atRest, ({ underLoad }: Account['memory']) => underLoad]
    return [
      name,
      ...columns.flatMap((figure) => {
        const [own, base] = [mebibytes(name, figure), mebibytes(floor, figure)]
        return [own.toFixed(0), name === floor || Number.isNaN(base) ? '' : (own / base).toFixed(2)]
      }),
    ]
  })
  return table([['memory (PSS)', 'at rest, MiB', 'of floor', 'under load, MiB', 'of floor'], ...rows], 1)
}

function proof(accounts: readonly Account[]): string {
  const total = accounts.reduce((sum, { recorded }) => sum + recorded, 0)
  return `${total.toLocaleString('en')} debits acknowledged, as many found in the databases after kill -9`
}

function ratioText(ratio: number | null): string {
  return ratio === null ? '' : ratio.toFixed(2)
}
