/** Summary of the rounds. Values are medians over the rounds; ratios are computed within each round first. */
import type { Account, Measurement, Results } from './rounds.ts'
import { median } from './load/latency.ts'
import type { Storage } from './measure/storage.ts'
import type { table } from './table.ts'

export interface Conditions {
  readonly processors: string
  readonly node: string
  readonly sqlite: string
  /** Name and version of each peer, or that it is not installed. */
  readonly peers: readonly string[]
  readonly storage: Storage
  readonly rounds: number
  readonly seconds: number
  readonly bodies: string
  readonly entryBytes: number
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
  /** Decisions per second and the 99th percentile, relative to each other contender. */
  readonly relative: Readonly<Record<string, { readonly perSecond: number; readonly p99: number }>>
}

/** Columns of the table. */
const BASES = ['agent', 'floor (net)', 'redis', 'redis (everysec)'] as const

interface Wanted {
  readonly contender: string
  readonly connections: number
  readonly of: string
  readonly figure: 'perSecond' | 'p99'
  /** At least for decisions per second, at most for the percentile. */
  readonly bound: number
}

export const WANTED: readonly Wanted[] = [
  { contender: 'agent', connections: 1, of: 'redis', figure: 'perSecond', bound: 0.8 },
  { contender: 'agent', connections: 16, of: 'redis', figure: 'perSecond', bound: 1 },
  { contender: 'agent', connections: 64, of: 'redis', figure: 'perSecond', bound: 1.2 },
  { contender: 'agent', connections: 64, of: 'floor (net)', figure: 'perSecond', bound: 0.8 },
  { contender: 'agent', connections: 64, of: 'redis', figure: 'p99', bound: 1.2 },
  { contender: 'agent (write-behind)', connections: 64, of: 'redis (everysec)', figure: 'perSecond', bound: 1.5 },
  { contender: 'agent (write-behind)', connections: 64, of: 'redis (everysec)', figure: 'p99', bound: 1.2 },
  { contender: 'agent (write-behind)', connections: 64, of: 'agent', figure: 'perSecond', bound: 1 },
  { contender: 'agent (denials)', connections: 64, of: 'agent', figure: 'perSecond', bound: 1.3 },
]

export function linesOf({ measurements }: Pick<Results, 'measurements'>): readonly Line[] {
  const contenders = [...new Set(measurements.map(({ contender }) => contender))]
  return [...new Set(measurements.map(({ connections }) => connections))].flatMap((connections) =>
    contenders.map((contender): Line => {
      const at = (name: string) =>
        measurements.filter((each) => each.contender === name && each.connections === connections)
      const own = at(contender)
      const medianOf = (figure: (each: Measurement) => number): number => median(own.map(figure))
      const others = contenders.filter((each) => each !== contender)
      return {
        connections,
        contender,
        perSecond: medianOf(({ perSecond }) => perSecond),
        p50Ms: medianOf(({ latency }) => latency.p50),
        p99Ms: medianOf(({ latency }) => latency.p99),
        serverMicros: medianOf(({ serverBusy, perSecond }) => (serverBusy / perSecond) * 1e6),
        generatorMicros: medianOf(({ busy, perSecond }) => (busy / perSecond) * 1e6),
        relative: Object.fromEntries(
          others.map((other) => [
            other,
            {
              perSecond: ratio(own, at(other), ({ perSecond }) => perSecond),
              p99: ratio(own, at(other), ({ latency }) => latency.p99),
            },
          ]),
        ),
      }
    }),
  )
}

/** Median over the rounds that both have. */
function ratio(
  own: readonly Measurement[],
  base: readonly Measurement[],
  figure: (each: Measurement) => number,
): number {
  return median(
    own.flatMap((each) => {
      const same = base.find(({ round }) => round === each.round)
      return same === undefined ? [] : [figure(each) / figure(same)]
    }),
  )
}

/** @param format of each table */
export function reportText(
  conditions: Conditions,
  lines: readonly Line[],
  accounts: readonly Account[],
  format: typeof table,
): string {
  return [
    format(conditionRows(conditions), 2),
    format(lineRows(lines), 2),
    format(wantedRows(lines), 3),
    format(memoryRows(accounts), 1),
    proof(accounts),
  ].join('\n\n')
}

function conditionRows(conditions: Conditions): readonly (readonly string[])[] {
  const { storage, rounds, seconds, bodies, entryBytes } = conditions
  return [
    ['condition', 'value'],
    ['machine', `${conditions.processors}, Node ${conditions.node}, SQLite ${conditions.sqlite}`],
    [
      'storage',
      `${storage.fileSystem} on ${storage.device}; 4 KiB and fdatasync, median: appended ` +
        `${storage.appendMs.toFixed(3)} ms, overwritten ${storage.overwriteMs.toFixed(3)} ms`,
    ],
    ['peers', conditions.peers.join(', ')],
    ['load', `closed loop, ${rounds} alternating rounds of ${seconds} s, medians; ${bodies} bodies`],
    ['record', `${entryBytes} bytes for each decision`],
    ['disturbance', `other programs kept ${conditions.othersBusy.toFixed(2)} processors busy (median)`],
  ]
}

function lineRows(lines: readonly Line[]): readonly (readonly string[])[] {
  const present = new Set(lines.map(({ contender }) => contender))
  const bases = BASES.filter((base) => present.has(base))
  return [
    [
      ...['connections', 'server', 'decisions/s', 'p50 ms', 'p99 ms', ...bases.map((base) => `of ${base}`)],
      ...['server µs', 'client µs'],
    ],
    ...lines.map((line) => [
      String(line.connections),
      line.contender,
      Math.round(line.perSecond).toLocaleString('en'),
      line.p50Ms.toFixed(2),
      line.p99Ms.toFixed(2),
      ...bases.map((base) => line.relative[base]?.perSecond.toFixed(2) ?? ''),
      line.serverMicros.toFixed(1),
      line.generatorMicros.toFixed(1),
    ]),
  ]
}

function wantedRows(lines: readonly Line[]): readonly (readonly string[])[] {
  return [
    ['connections', 'server', 'figure', 'wanted', 'measured', 'result'],
    ...WANTED.map(({ contender, connections, of, figure, bound }) => {
      const line = lines.find((each) => each.contender === contender && each.connections === connections)
      const measured = line?.relative[of]?.[figure]
      const name = figure === 'p99' ? `p99, of ${of}` : `decisions/s, of ${of}`
      const wanted = `${figure === 'p99' ? 'at most' : 'at least'} ${bound.toFixed(1)}`
      if (measured === undefined) return [String(connections), contender, name, wanted, '', 'not measured']
      const isReached = figure === 'p99' ? measured <= bound : measured >= bound
      return [String(connections), contender, name, wanted, measured.toFixed(2), isReached ? 'reached' : 'missed']
    }),
  ]
}

function memoryRows(accounts: readonly Account[]): readonly (readonly string[])[] {
  const mebibytes = (name: string, figure: (memory: Account['memory']) => number): string => {
    const own = accounts.filter(({ contender }) => contender === name)
    return (median(own.map(({ memory }) => figure(memory))) / 2 ** 20).toFixed(0)
  }
  return [
    ['memory (PSS)', 'at rest, MiB', 'under load, MiB'],
    ...[...new Set(accounts.map(({ contender }) => contender))].map((name) => [
      name,
      mebibytes(name, ({ atRest }) => atRest),
      mebibytes(name, ({ underLoad }) => underLoad),
    ]),
  ]
}

function proof(accounts: readonly Account[]): string {
  const total = accounts.reduce((sum, { recorded }) => sum + (recorded ?? 0), 0)
  return `${total.toLocaleString('en')} decisions acknowledged, as many found in the records of the servers`
}
