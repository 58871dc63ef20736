/**
 * `npm run crash`: what happens to the books when processes are killed and the power is cut. See docs/crash-testing.md for
 * what each of them proves, and what it does not.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { auditKills, type KillReport } from './kills.ts'

const USAGE = `npm run crash -- [kills|trace|power] [OPTION...]

  kills    agent and twin under load, killed at random moments, audited after each kill (default)

  --kills N            processes to kill (200)
  --seed S             decides when what is killed (random)
  --applications N     local applications (4)
  --in-flight N        requests that each has under way at a time (4)
  --state-dir DIR      where the data is kept meanwhile (.tallygate in the working folder)
  --keep               keep the data and the logs
  --help               this text
`

const { values, positionals } = parseArgs({
  options: {
    kills: { type: 'string', default: '200' },
    seed: { type: 'string' },
    applications: { type: 'string', default: '4' },
    'in-flight': { type: 'string', default: '4' },
    'state-dir': { type: 'string', default: '.tallygate' },
    keep: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
  allowPositionals: true,
})

function whole(option: string, text: string): number {
  const number = Number(text)
  if (Number.isSafeInteger(number) && number >= 1) return number
  throw new Error(`${option} takes a whole number from 1, not '${text}'`)
}

async function kills(directory: string): Promise<void> {
  const seed = values.seed === undefined ? Math.floor(Math.random() * 2 ** 32) : Number(values.seed)
  console.log(`seed ${seed}`)
  const report = await auditKills({
    directory,
    kills: whole('--kills', values.kills),
    seed,
    applications: whole('--applications', values.applications),
    inFlight: whole('--in-flight', values['in-flight']),
    onProgress: show,
  })
  if (process.stderr.isTTY) process.stderr.write('\r\u001b[K')
  console.log(JSON.stringify(report, null, 2))
}

function show(report: KillReport): void {
  const line = `${report.kills} kills, ${report.told} answers, ${report.entries} entries, ${report.billed} billed`
  if (process.stderr.isTTY) process.stderr.write(`\r\u001b[K${line}`)
  else console.error(line)
}

async function run(): Promise<void> {
  if (values.help) {
    process.stdout.write(USAGE)
    return
  }
  const parent = resolve(values['state-dir'])
  mkdirSync(parent, { recursive: true })
  const directory = mkdtempSync(join(parent, 'crash-'))
  try {
    const [what = 'kills'] = positionals
    if (what === 'kills') await kills(directory)
    else throw new Error(`there is no '${what}' (kills, trace, power)`)
  } finally {
    if (values.keep) console.log(`kept: ${directory}`)
    else rmSync(directory, { recursive: true, force: true })
  }
}

try {
  await run()
} catch (error) {
  console.error(`crash: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`)
  process.exitCode = 1
}
