import { Command } from 'commander'
import { grouped } from '../../core/accounts/in-words.ts'
import { type SweepState, sweepState } from '../../protocol/edge/administration.ts'
import { ERRORS } from '../../protocol/errors.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { jsonLine, writeLines } from '../lines.ts'

const SWEEPS = '/edge/api/v1/sweeps'

export function command(io: Io): Command {
  const sweeps = new Command('sweeps').description(
    'Shows and resumes time-driven work of the cloud that cannot be undone: settling silent devices, ending and charging sessions.',
  )
  withAdministratorFlags(sweeps.command('show'))
    .description('Shows whether sweeps are paused, and why.')
    .option('--json', 'print one JSON document')
    .action((flags: AdministratorFlags) => call({ method: 'GET', path: SWEEPS }, flags, io))
  const confirm = sweeps.command('confirm').description('Resumes paused sweeps.')
  withAdministratorFlags(confirm.command('clock'))
    .description('Confirms that the clock of the cloud is correct.')
    .option('--json', 'print one JSON document')
    .action((flags: AdministratorFlags) => call({ method: 'POST', path: `${SWEEPS}/clock/confirm` }, flags, io))
  withAdministratorFlags(confirm.command('settlement'))
    .description('Settles all devices that are due now, regardless of their number.')
    .option('--json', 'print one JSON document')
    .action((flags: AdministratorFlags) => call({ method: 'POST', path: `${SWEEPS}/settlement/confirm` }, flags, io))
  return examples(sweeps, ['tallygate sweeps show', 'tallygate sweeps confirm clock'])
}

async function call(
  request: { readonly method: 'GET' | 'POST'; readonly path: string },
  flags: AdministratorFlags,
  io: Io,
) {
  using service = await administrator(flags, io)
  const state = await service.json(request, sweepState)
  writeLines(io.stdout, flags.json === true ? [jsonLine(state)] : [clockLine(state), settlementLine(state)])
}

function clockLine({ now, clock }: SweepState): string {
  const time = new Date(now).toISOString()
  if (clock === null) return `clock       ${time}, trusted`
  const hours = Math.abs(clock.aheadMs) / 3_600_000
  const off = `${hours.toFixed(1)} h ${clock.aheadMs < 0 ? 'before' : 'after'} the expected time`
  return `clock       ${time}, paused by ${clock.code}: ${off}. ${ERRORS[clock.code].remedy}`
}

function settlementLine({ settlement: { paused, due, settled, allowed } }: SweepState): string {
  const counts = `devices due: ${grouped(due)}, settled within 24 hours: ${grouped(settled)} of ${grouped(allowed)} allowed`
  if (!paused) return `settlement  ${counts}`
  return `settlement  paused by SETTLEMENT_TOO_LARGE: ${counts}. ${ERRORS.SETTLEMENT_TOO_LARGE.remedy}`
}
