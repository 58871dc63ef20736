/**
 * `npm run bench:history`: whether a decision costs the same with a long history and with many line items. See
 * docs/explanation/benchmarks.md.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { orUsage } from '../scripts/or-usage.ts'
import { wholeNumber, wholeNumbers } from '../scripts/whole-number.ts'
import type { StateContents } from './contenders/agent-state.ts'
import { agentOf } from './contenders/agent.ts'
import type { Running } from './contenders/contender.ts'
import { type Place, withPlace } from './contenders/place.ts'
import { LoadGenerator } from './load/generator.ts'
import { median } from './load/latency.ts'
import { processorSeconds } from './measure/process-use.ts'
import { markdown, table } from './table.ts'

const USAGE = `npm run bench:history -- [OPTION...]

Decisions of agents with different histories and policies, all running, each loaded in turn. The last line says whether all are
within 1.1 times the first.

  --entries LIST       entries in the ledger (1000,1000000,10000000); the last takes a minute to make and 400 MB
  --line-items LIST    line items in the policy that do not apply (10,10000)
  --connections N      connections that ask in turn (64)
  --seconds N          length of one turn (1)
  --turns N            turns of each agent; the table shows medians (15)
  --state-dir DIR      where the agents keep their data; not tmpfs (.tallygate)
  --markdown           the table as Markdown
  --help               this text
`

const options = orUsage(USAGE, () => {
  const { values } = parseArgs({
    options: {
      entries: { type: 'string', default: '1000,1000000,10000000' },
      'line-items': { type: 'string', default: '10,10000' },
      connections: { type: 'string', default: '64' },
      seconds: { type: 'string', default: '1' },
      turns: { type: 'string', default: '15' },
      'state-dir': { type: 'string', default: '.tallygate' },
      markdown: { type: 'boolean', default: false },
    },
  })
  return {
    entries: wholeNumbers('--entries', values.entries),
    lineItems: wholeNumbers('--line-items', values['line-items']),
    connections: wholeNumber('--connections', values.connections),
    seconds: wholeNumber('--seconds', values.seconds),
    turns: wholeNumber('--turns', values.turns),
    parent: resolve(values['state-dir']),
    format: values.markdown ? markdown : table,
  }
})

const WARMUP_MS = 2_000

/** At most this much slower, and this much more processor time. */
const WANTED = 1.1

interface Subject {
  readonly contents: StateContents
  readonly running: Running
  readonly turns: { readonly perSecond: number; readonly micros: number }[]
}

/** Starts an agent for each of the contents, one inside the place of the other. */
async function withAgents(
  parent: string,
  contents: readonly StateContents[],
  use: (subjects: readonly Subject[]) => Promise<void>,
): Promise<void> {
  const [first, ...others] = contents
  if (first === undefined) {
    await use([])
    return
  }
  const own = join(parent, String(contents.length))
  mkdirSync(own)
  await withPlace(own, async (place: Place) => {
    const running = await agentOf({ name: 'agent', contents: first }).start(place)
    try {
      await withAgents(parent, others, (rest) => use([{ contents: first, running, turns: [] }, ...rest]))
    } finally {
      await running.killAndCount()
    }
  })
}

async function measure(subjects: readonly Subject[], generator: LoadGenerator): Promise<void> {
  const { connections, seconds, turns: count } = options
  for (const { running } of subjects) {
    await generator.run({ target: running.target, connections, warmupMs: 0, durationMs: WARMUP_MS })
  }
  for (let turn = 0; turn < count; turn += 1) {
    for (const { running, turns } of subjects) {
      const { target, pid } = running
      const before = processorSeconds(pid)
      const durationMs = seconds * 1_000
      const { acknowledged, perSecond } = await generator.run({ target, connections, warmupMs: 0, durationMs })
      turns.push({ perSecond, micros: ((processorSeconds(pid) - before) / acknowledged) * 1e6 })
    }
  }
}

function show(subjects: readonly Subject[]): void {
  const [first] = subjects
  const rows = subjects.map(({ contents, turns }) => {
    const ratio = (figure: (turn: Subject['turns'][number]) => number): number =>
      median(turns.map((turn, index) => figure(turn) / figure(first?.turns[index] ?? turn)))
    return {
      contents,
      perSecond: median(turns.map(({ perSecond }) => perSecond)),
      micros: median(turns.map(({ micros }) => micros)),
      slower: 1 / ratio(({ perSecond }) => perSecond),
      costlier: ratio(({ micros }) => micros),
    }
  })
  console.log(
    options.format(
      [
        ['entries', 'line items', 'decisions/s', 'server µs', 'slower than the first', 'processor time of the first'],
        ...rows.map(({ contents, perSecond, micros, slower, costlier }) => [
          contents.entries.toLocaleString('en'),
          contents.lineItems.toLocaleString('en'),
          Math.round(perSecond).toLocaleString('en'),
          micros.toFixed(1),
          slower.toFixed(2),
          costlier.toFixed(2),
        ]),
      ],
      0,
    ),
  )
  const isFlat = rows.every(({ slower, costlier }) => slower <= WANTED && costlier <= WANTED)
  console.log(`\nwithin ${WANTED} of the first: ${isFlat ? 'reached' : 'missed'}`)
}

const {
  entries: histories,
  lineItems: [fewest = 10, ...moreItems],
  parent,
} = options
const contents = [
  ...histories.map((entries) => ({ entries, lineItems: fewest })),
  ...moreItems.map((lineItems) => ({ entries: histories[0] ?? 0, lineItems })),
]
mkdirSync(parent, { recursive: true })
const work = mkdtempSync(join(parent, 'history-'))
const generator = new LoadGenerator()
try {
  await withAgents(work, contents, async (subjects) => {
    await measure(subjects, generator)
    show(subjects)
  })
} finally {
  generator.stop()
  rmSync(work, { recursive: true, force: true })
}
