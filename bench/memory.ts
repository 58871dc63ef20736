/**
 * `npm run bench:memory`: memory, start time and size of the packaged agent, beside the runtime alone. See
 * docs/explanation/benchmarks.md.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { orUsage } from '../scripts/or-usage.ts'
import { wholeNumber } from '../scripts/whole-number.ts'
import { median } from './load/latency.ts'
import type { MemoryUse } from './measure/process-use.ts'
import { bareNode, connected, startTimes, underLoad } from './memory/figures.ts'
import { installation } from './contenders/installation.ts'

const USAGE = `npm run bench:memory -- [OPTION...]

Memory, start time and size of the agent as the Debian package installs it, beside the runtime alone.

  --home DIR        an installation, such as usr/lib/tallygate of an unpacked package (builds one)
  --only LIST       of: bare, start, durable, write-behind, connected (all)
  --starts N        measured starts (9)
  --state-dir DIR   where the agents keep their data while measured; not tmpfs (.tallygate)
  --help            this text
`

const PARTS = ['bare', 'start', 'durable', 'write-behind', 'connected']

const options = orUsage(USAGE, () => {
  const { values } = parseArgs({
    options: {
      home: { type: 'string' },
      only: { type: 'string', default: PARTS.join(',') },
      starts: { type: 'string', default: '9' },
      'state-dir': { type: 'string', default: '.tallygate' },
    },
  })
  const only = values.only.split(',')
  const unknown = only.find((name) => !PARTS.includes(name))
  if (unknown !== undefined) throw new Error(`--only takes ${PARTS.join(', ')}, not '${unknown}'`)
  return {
    home: values.home === undefined ? null : resolve(values.home),
    parts: new Set(only),
    starts: wholeNumber('--starts', values.starts),
    parent: resolve(values['state-dir']),
  }
})

const MIB = 2 ** 20

const LOADS = [
  ['durable', '110 MiB'],
  ['write-behind', '120 MiB'],
] as const

type Row = readonly [what: string, measured: string, wanted: string]

function show(...rows: readonly Row[]): void {
  for (const [what, measured, wanted] of rows)
    console.log(`${what.padEnd(58)} ${measured.padEnd(34)} ${wanted}`.trimEnd())
}

function inMib({ total, anonymous }: MemoryUse): string {
  return `${(total / MIB).toFixed(1)} MiB, ${(anonymous / MIB).toFixed(1)} anonymous`
}

async function main(work: string): Promise<void> {
  const { home, parts, starts } = options
  const { command, node, size } = await installation(home, work)
  show(['', 'measured', 'wanted'], ['installed size', `${(size / 1e6).toFixed(1)} MB`, ''])
  if (parts.has('bare')) {
    const { rest, startMs } = await bareNode(node)
    show(['runtime alone, PSS', inMib(rest), ''], ['runtime alone, start', `${startMs.toFixed(0)} ms`, ''])
  }
  if (parts.has('start')) {
    const times = await startTimes(command, work, starts)
    const range = `${Math.min(...times).toFixed(0)} to ${Math.max(...times).toFixed(0)}`
    show(['start to the first granted request', `${median(times).toFixed(0)} ms (${range})`, '300 ms'])
  }
  for (const [durability, wanted] of LOADS) {
    if (!parts.has(durability)) continue
    const { peak, perSecond } = await underLoad(command, work, durability)
    show([`under load (${Math.round(perSecond)}/s), ${durability}, PSS`, inMib(peak), wanted])
  }
  if (parts.has('connected')) {
    const { rest, delivered } = await connected(command, work)
    const { entries, peak, seconds } = delivered
    show(
      ['at rest, enrolled and connected, PSS', inMib(rest), '75 MiB, 30 anonymous'],
      [`peak RSS, ${entries} entries delivered (${seconds.toFixed(0)} s)`, `${(peak / 1e6).toFixed(1)} MB`, '140 MB'],
      ['at rest after the delivery, PSS', inMib(delivered.rest), ''],
    )
  }
}

mkdirSync(options.parent, { recursive: true })
const work = mkdtempSync(`${options.parent}/memory-`)
try {
  await main(work)
} finally {
  rmSync(work, { recursive: true, force: true })
}
