/** `npm run crash`: audits the books after kills and power cuts. */
import { randomInt } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { counted } from '../src/core/accounts/in-words.ts'
import { orUsage } from '../scripts/or-usage.ts'
import { wholeNumber, wholeNumbers } from '../scripts/whole-number.ts'
import { auditKills, type KillReport } from './kills.ts'
import { cutPower } from './power.ts'
import { traceReplies } from './trace.ts'

const USAGE = `npm run crash -- [kills|trace|power] [OPTION...]

  kills    agent and cloud under load, killed at random moments, audited after each kill (default)
  trace    the agent under strace: no response leaves before the flush of its entry
  power    what both do, replayed onto a disk that keeps only what was flushed, cut at many moments

  --kills N            processes to kill (200)
  --decisions N        responses to trace for each number of connections (20000), or to record for the power cuts (1500)
  --cuts N             power cuts of each side (500)
  --connections LIST   (1,16,64)
  --seed S             decides when what is killed (random)
  --applications N     local applications (4)
  --in-flight N        requests that each has under way at a time (4)
  --state-dir DIR      where the data is kept meanwhile (.tallygate in the working folder)
  --keep               keep the data and the logs
  --help               this text
`

const PROOFS = { kills, trace, power }

const options = orUsage(USAGE, () => {
  const { values, positionals } = parseArgs({
    options: {
      kills: { type: 'string', default: '200' },
      seed: { type: 'string' },
      decisions: { type: 'string' },
      cuts: { type: 'string', default: '500' },
      connections: { type: 'string', default: '1,16,64' },
      applications: { type: 'string', default: '4' },
      'in-flight': { type: 'string', default: '4' },
      'state-dir': { type: 'string', default: '.tallygate' },
      keep: { type: 'boolean', default: false },
    },
    allowPositionals: true,
  })
  const [name = 'kills', ...others] = positionals
  if (!isProof(name) || others.length > 0) throw new Error(`Give one of ${Object.keys(PROOFS).join(', ')}.`)
  return {
    prove: PROOFS[name],
    kills: wholeNumber('--kills', values.kills),
    decisions: values.decisions === undefined ? null : wholeNumber('--decisions', values.decisions),
    cuts: wholeNumber('--cuts', values.cuts),
    connections: wholeNumbers('--connections', values.connections),
    seed: values.seed === undefined ? randomInt(1, 2 ** 32) : wholeNumber('--seed', values.seed),
    applications: wholeNumber('--applications', values.applications),
    inFlight: wholeNumber('--in-flight', values['in-flight']),
    stateDirectory: resolve(values['state-dir']),
    isKept: values.keep,
  }
})

function isProof(name: string): name is keyof typeof PROOFS {
  return Object.hasOwn(PROOFS, name)
}

async function kills(directory: string): Promise<void> {
  const { seed, applications, inFlight } = options
  console.log(`seed ${seed}`)
  const report = await auditKills({
    directory,
    kills: options.kills,
    seed,
    applications,
    inFlight,
    onProgress: show,
  })
  progress('')
  console.log(JSON.stringify(report, null, 2))
}

function show(report: KillReport): void {
  progress(`${report.kills} kills, ${report.answered} responses, ${report.entries} entries, ${report.billed} billed`)
}

/** On a terminal only. */
function progress(text: string): void {
  if (process.stderr.isTTY) process.stderr.write(`\r\u001b[K${text}`)
}

async function trace(directory: string): Promise<void> {
  const reports = await traceReplies({
    directory,
    decisions: options.decisions ?? 20_000,
    connections: options.connections,
  })
  for (const { connections, answers, proven, early, unseen, commits, flushes } of reports) {
    console.log(
      `${counted(connections, 'connection', 'connections')}: ${answers} responses, ${proven.size} after their flush, ${early.length} too early, ` +
        `${unseen} not in the trace; ${commits} transactions, ${flushes} flushes`,
    )
    for (const line of early.slice(0, 10)) console.log(`  ${line}`)
  }
  if (reports.some(({ early, unseen }) => early.length + unseen > 0)) process.exitCode = 1
}

async function power(directory: string): Promise<void> {
  const { cuts, seed } = options
  console.log(`seed ${seed}`)
  const reports = await cutPower({
    directory,
    decisions: options.decisions ?? 1_500,
    cuts,
    seed,
    onProgress: (side, done) => progress(`${side}: ${done} cuts`),
  })
  progress('')
  for (const { failures, ...report } of reports) {
    console.log(JSON.stringify({ ...report, failures: failures.length }, null, 2))
    for (const failure of failures.slice(0, 20)) console.log(`  ${failure}`)
  }
  if (reports.some(({ failures }) => failures.length > 0)) process.exitCode = 1
}

async function run(): Promise<void> {
  const { stateDirectory, prove, isKept } = options
  mkdirSync(stateDirectory, { recursive: true })
  const directory = mkdtempSync(join(stateDirectory, 'crash-'))
  try {
    await prove(directory)
  } finally {
    if (isKept) console.log(`kept: ${directory}`)
    else rmSync(directory, { recursive: true, force: true })
  }
}

try {
  await run()
} catch (error) {
  console.error(`crash: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`)
  process.exitCode = 1
}
