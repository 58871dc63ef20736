import { Command } from 'commander'
import { presenterFor, silent } from '../../demo/presenter.ts'
import { reportJson, reportText } from '../../demo/report.ts'
import { succeeded } from '../../demo/result.ts'
import { runDemo } from '../../demo/run.ts'
import { wholeNumberArgument } from '../arguments.ts'
import { INTERRUPTED, type Io } from '../io.ts'

interface DemoFlags {
  readonly connections: number
  readonly kills: number
  readonly seed: number
  readonly chaos?: boolean
  readonly keep?: boolean
  readonly json?: boolean
}

const DISAGREEMENT = 1

export function command(io: Io): Command {
  return new Command('demo')
    .description('Runs cloud and agent on this machine, plays a day with network outages, and compares the ledgers.')
    .option('--connections <number>', 'number of concurrent applications', wholeNumberArgument(1, 256), 16)
    .option(
      '--kills <number>',
      'number of times the agent is killed (SIGKILL) during the day',
      wholeNumberArgument(0, 100),
      0,
    )
    .option('--chaos', "kill both services, change the device's clock, and make the network slow, lossy and unreliable")
    .option('--seed <number>', 'seed for the times of kills and faults', wholeNumberArgument(0, 2 ** 32 - 1), 1)
    .option('--keep', 'keep the directory with databases and logs, and print its path')
    .option('--json', 'print only one JSON document at the end')
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
