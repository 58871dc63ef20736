/** `tallygate demo`: twin and agent on this machine, a day of requests, a network that fails, and ledgers that agree. */
import { Command } from 'commander'
import { presenterFor, silent } from '../../demo/presenter.ts'
import { reportJson, reportText } from '../../demo/report.ts'
import { succeeded } from '../../demo/result.ts'
import { runDemo } from '../../demo/run.ts'
import { wholeNumberArgument } from '../arguments.ts'
import type { Io } from '../io.ts'

interface DemoFlags {
  readonly connections: number
  readonly kills: number
  readonly seed: number
  readonly chaos?: boolean
  readonly keep?: boolean
  readonly json?: boolean
}

const DISAGREEMENT = 1
const INTERRUPTED = 130

export function command(io: Io): Command {
  return new Command('demo')
    .description(
      'Runs twin and agent on this machine, plays a recorded day with the network cut, compares the ledgers.',
    )
    .option('--connections <number>', 'how many applications ask at a time', wholeNumberArgument(1, 256), 16)
    .option(
      '--kills <number>',
      'how often the agent is killed (SIGKILL) during the day',
      wholeNumberArgument(0, 100),
      0,
    )
    .option('--chaos', "kill both services, set the device's clock, make the network slow, lossy and broken")
    .option('--seed <number>', 'decides when the kills and disturbances fall', wholeNumberArgument(0, 2 ** 32 - 1), 1)
    .option('--keep', 'keep the directory with databases and logs, and say where it is')
    .option('--json', 'for programs: one JSON document at the end, nothing else')
    .action(async ({ connections, kills, seed, chaos = false, keep = false, json = false }: DemoFlags) => {
      const presenter = json ? silent : presenterFor(io.stdout)
      const signal = io.stop()
      try {
        const result = await runDemo({ connections, kills, seed, chaos, keep, presenter, signal })
        if (json) io.stdout.write(`${JSON.stringify(reportJson(result))}\n`)
        else presenter.lines(['', ...reportText(result)])
        if (!succeeded(result)) io.exitWith(DISAGREEMENT)
      } catch (error) {
        if (!signal.aborted) throw error
        io.exitWith(INTERRUPTED)
      }
    })
}
