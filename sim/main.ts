/** The command line, `npm run sim -- --help`. */
import { parseArgs } from 'node:util'
import { orUsage } from '../scripts/or-usage.ts'
import { SEGMENT_ENTRIES_MAX } from '../src/protocol/edge/sync.ts'
import { DEFECTS, defectNamed, withNeeds } from './defects/list.ts'
import { runMany } from './many.ts'
import { FAULT_KINDS, type FaultKind } from './draw/faults.ts'
import { DEFAULT_OPTIONS, type PlanOptions, drawPlan } from './draw/plan.ts'
import { type RunResult, run } from './run.ts'
import { shrink } from './shrink.ts'
import { add, noTotals, summaryOf } from './totals.ts'
import { signAtOnce } from './world/signatures.ts'

const USAGE = `npm run sim -- [OPTION...]

Agent and cloud in one process, in virtual time, with faults drawn from a seed.

  --seeds N            run N seeds (100)
  --from N             the first of them (1)
  --seed N             run this one alone
  --trace              print what it does, step by step
  --devices N          devices of each site (${DEFAULT_OPTIONS.devices})
  --hours N            virtual hours with faults (${DEFAULT_OPTIONS.hours})
  --requests N         requests of a device (${DEFAULT_OPTIONS.requests})
  --segment-entries N  entries of a segment (${SEGMENT_ENTRIES_MAX})
  --without A,B        kinds of faults that are left out: ${FAULT_KINDS.join(' ')}
  --always A,B         kinds of faults that every seed has
  --defect NAME        with a deliberate defect
  --defects            list them
  --threads N          threads (as many as there are processors)
  --minutes N          begin no further seed after so long, as after Ctrl-C
  --keep-going         do not stop at the first failure
  --no-shrink          do not look for a shorter failing run
  --json               the summary as JSON
  --help               this text
`

const { values, defect, options, numbers } = orUsage(USAGE, () => {
  const { values } = parseArgs({
    options: {
      seeds: { type: 'string', default: '100' },
      from: { type: 'string', default: '1' },
      seed: { type: 'string' },
      trace: { type: 'boolean', default: false },
      devices: { type: 'string', default: String(DEFAULT_OPTIONS.devices) },
      hours: { type: 'string', default: String(DEFAULT_OPTIONS.hours) },
      requests: { type: 'string', default: String(DEFAULT_OPTIONS.requests) },
      'segment-entries': { type: 'string', default: String(SEGMENT_ENTRIES_MAX) },
      without: { type: 'string', default: '' },
      always: { type: 'string', default: '' },
      defect: { type: 'string' },
      defects: { type: 'boolean', default: false },
      threads: { type: 'string', default: '0' },
      minutes: { type: 'string', default: '0' },
      'keep-going': { type: 'boolean', default: false },
      'no-shrink': { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
    },
  })
  const defect = values.defect ?? null
  defectNamed(defect)
  const planned: PlanOptions = {
    devices: wholeNumber('devices', values.devices),
    hours: wholeNumber('hours', values.hours),
    requests: wholeNumber('requests', values.requests),
    segmentEntriesMax: wholeNumber('segment-entries', values['segment-entries']),
    without: kinds(values.without),
    always: kinds(values.always),
  }
  return {
    values,
    defect,
    options: planned,
    numbers: {
      seed: values.seed === undefined ? null : wholeNumber('seed', values.seed),
      seeds: wholeNumber('seeds', values.seeds),
      from: wholeNumber('from', values.from),
      threads: wholeNumber('threads', values.threads),
      minutes: wholeNumber('minutes', values.minutes),
    },
  }
})

const SHRINK_ATTEMPTS_MAX = 300

const TRACE_SHOWN = 40

if (values.defects) for (const { name, is } of DEFECTS) console.log(`${name.padEnd(28)} ${is}`)
else if (numbers.seed !== null) process.exitCode = await one(numbers.seed)
else process.exitCode = await several()

async function one(seed: number): Promise<number> {
  signAtOnce()
  const result = await run(drawPlan(seed, withNeeds(options, defect)), {
    keepTrace: values.trace,
    defect: defectNamed(defect),
  })
  if (values.trace) console.log(result.trace.join('\n'))
  const totals = noTotals()
  add(totals, result)
  if (values.json) console.log(JSON.stringify({ ...result, trace: undefined }))
  else console.log(`${summaryOf(totals, 1)}\ntrace ${result.digest}`)
  if (result.violation === null) return 0
  await report(result)
  return 1
}

async function several(): Promise<number> {
  const { seeds: count, from, threads, minutes } = numbers
  const runs = Array.from({ length: count }, (_, index) => ({ seed: from + index, options }))
  const totals = noTotals()
  const failures: RunResult[] = []
  const begun = performance.now()
  const seconds = (): number => (performance.now() - begun) / 1000
  let shownAt = 0
  let isStopped = false
  const stop = (): void => {
    isStopped = true
  }
  // First signal: finish the running seeds and print totals. Second: exit.
  process.once('SIGINT', stop)
  await runMany({
    runs,
    defect,
    threads,
    onResult: (result) => {
      add(totals, result)
      if (result.violation !== null) {
        failures.push(result)
        // Report at once: long runs may be interrupted.
        if (!values.json)
          process.stderr.write(`seed ${result.seed}: ${result.violation.invariant} ${result.violation.message}\n`)
      }
      const isLast = totals.seeds === count
      const every = process.stderr.isTTY ? 0.2 : 30
      if (!values.json && (isLast || seconds() - shownAt >= every)) {
        shownAt = seconds()
        const line = `${totals.seeds}/${count} seeds, ${totals.steps} steps, ${failures.length} failed, ${shownAt.toFixed(0)} s`
        process.stderr.write(process.stderr.isTTY ? `\r${line}\x1b[K${isLast ? '\n' : ''}` : `${line}\n`)
      }
      if (isStopped || (minutes > 0 && seconds() > minutes * 60)) return false
      return failures.length === 0 || values['keep-going']
    },
  })
  process.off('SIGINT', stop)
  if (values.json) {
    const shown = failures.map(({ seed, violation }) => ({ seed, violation }))
    console.log(JSON.stringify({ ...totals, seconds: seconds(), failures: shown }))
  } else console.log(summaryOf(totals, seconds()))
  for (const { seed, violation } of failures) console.log(`seed ${seed}: ${violation?.invariant} ${violation?.message}`)
  const [first] = failures
  if (first === undefined) return 0
  if (!values.json) {
    signAtOnce()
    await report(first)
  }
  return 1
}

async function report(result: RunResult): Promise<void> {
  const { violation } = result
  if (violation === null) return
  console.log(`\nseed ${result.seed} breaks ${violation.invariant}: ${violation.message}`)
  if (values['no-shrink']) return
  const fails = async (plan: Parameters<typeof run>[0], keepTrace = false): Promise<RunResult | undefined> => {
    const again = await run(plan, { keepTrace, defect: defectNamed(defect) })
    return again.violation?.invariant === violation.invariant ? again : undefined
  }
  const plan = drawPlan(result.seed, withNeeds(options, defect))
  const shortest = await shrink(plan, result, fails, SHRINK_ATTEMPTS_MAX)
  const shown = await fails(shortest.plan, true)
  console.log(`the shortest that was found has ${shortest.plan.events.length} of ${plan.events.length} events:`)
  for (const { at, what } of shortest.plan.events)
    console.log(`  ${(at / 1000).toFixed(0).padStart(8)} s ${JSON.stringify(what)}`)
  console.log(`its last ${TRACE_SHOWN} lines of ${shown?.trace.length ?? 0}:`)
  for (const line of (shown?.trace ?? []).slice(-TRACE_SHOWN)) console.log(`  ${line}`)
  console.log(`again: npm run sim -- --seed ${result.seed} --trace${defect === null ? '' : ` --defect ${defect}`}`)
}

function wholeNumber(name: string, text: string): number {
  const number = Number(text)
  if (!Number.isSafeInteger(number) || number < 0) throw new Error(`--${name} takes a whole number, not '${text}'`)
  return number
}

function kinds(text: string): readonly FaultKind[] {
  return text
    .split(',')
    .filter((name) => name !== '')
    .map((name) => {
      const kind = FAULT_KINDS.find((known) => known === name)
      if (kind === undefined) throw new Error(`there is no kind of fault ${name}: ${FAULT_KINDS.join(' ')}`)
      return kind
    })
}
