/** `tallygate sweeps`: what pauses work of the twin that cannot be undone, and the word of an administrator that lets it go on. */
import { Command } from 'commander'
import { type SweepState, sweepState } from '../../protocol/edge/administration.ts'
import { ERRORS } from '../../protocol/errors.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { jsonLine } from '../json-line.ts'
import { writeLines } from '../lines.ts'

interface Flags extends AdministratorFlags {
  readonly json?: true
}

const SWEEPS = '/edge/api/v1/sweeps'

export function command(io: Io): Command {
  const sweeps = new Command('sweeps').description(
    'Work of the twin that time brings and that cannot be undone: settling silent devices, ending and charging sessions.',
  )
  withAdministratorFlags(sweeps.command('show'))
    .description('Shows whether it is paused, and why.')
    .option('--json', 'for programs: one JSON document')
    .action((flags: Flags) => call({ method: 'GET', path: SWEEPS }, flags, io))
  const confirm = sweeps.command('confirm').description('Lets paused work go on.')
  withAdministratorFlags(confirm.command('clock'))
    .description('Says that the clock of the twin is right.')
    .option('--json', 'for programs: one JSON document')
    .action((flags: Flags) => call({ method: 'POST', path: `${SWEEPS}/clock/confirm` }, flags, io))
  withAdministratorFlags(confirm.command('settlement'))
    .description('Has all devices settled that are due now, however many they are.')
    .option('--json', 'for programs: one JSON document')
    .action((flags: Flags) => call({ method: 'POST', path: `${SWEEPS}/settlement/confirm` }, flags, io))
  return examples(sweeps, [
    'TWIN=(--url https://twin.example/dynamicmonetization --admin-key administration-key.pem)',
    'tallygate sweeps show "${TWIN[@]}"',
    'tallygate sweeps confirm clock "${TWIN[@]}"',
  ])
}

async function call(request: { readonly method: 'GET' | 'POST'; readonly path: string }, flags: Flags, io: Io) {
  using client = await administrator(flags, io)
  const state = await client.json(request, sweepState)
  writeLines(io.stdout, flags.json === true ? [jsonLine(state)] : [clockLine(state), settlementLine(state)])
}

function clockLine({ now, clock }: SweepState): string {
  const time = new Date(now).toISOString()
  if (clock === null) return `clock       ${time}, trusted`
  const hours = Math.abs(clock.aheadMs) / 3_600_000
  const off = `${hours.toFixed(1)} h ${clock.aheadMs < 0 ? 'before' : 'after'} the time that was expected`
  return `clock       ${time}, paused by ${clock.code}: ${off}. ${ERRORS[clock.code].remedy}`
}

function settlementLine({ settlement: { paused, due, settled, allowed } }: SweepState): string {
  const counts = `${due} devices are due, ${settled} were settled within 24 hours, ${allowed} are allowed`
  if (!paused) return `settlement  ${counts}`
  return `settlement  paused by SETTLEMENT_TOO_LARGE: ${counts}. ${ERRORS.SETTLEMENT_TOO_LARGE.remedy}`
}
