/** Signs a browser in to the console of a cloud. The key stays here: the browser gets a token that expires. */
import { Command, Option } from 'commander'
import { consoleCode } from '../../protocol/edge/administration.ts'
import {
  type AdministratorFlags,
  administratorToken,
  clientWith,
  targetOf,
  withAdministratorFlags,
} from '../administrator.ts'
import { durationBetween } from '../arguments.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { jsonLine, writeLines } from '../lines.ts'

interface Flags extends AdministratorFlags {
  readonly for: number
}

export function command(io: Io): Command {
  const console = withAdministratorFlags(new Command('console'))
    .description(
      'Prints a URL that opens the console of a cloud in a browser, signed in as you. It works once, within a minute.',
    )
    .addOption(
      new Option(
        '--for <duration>',
        'how long the browser stays signed in with --admin-key; others until their sign-in expires',
      )
        .argParser(durationBetween('1m', '30d'))
        .default(3_600_000, '1h'),
    )
    .option('--json', 'print one JSON document')
    .action(async (flags: Flags) => {
      const target = targetOf(flags, io)
      using service = clientWith(target, await administratorToken(target, io, flags.for), io)
      const { code, expiresAt } = await service.json(
        { method: 'POST', path: '/edge/api/v1/console-codes' },
        consoleCode,
      )
      const url = `${target.url.replace(/\/+$/, '')}/console/sign-in#${code}`
      writeLines(io.stdout, [flags.json === true ? jsonLine({ url, expiresAt }) : url])
    })
  // Not `xdg-open "$(tallygate console)"`: other users of the machine can read the arguments of a program.
  return examples(console, [
    'tallygate console --url http://127.0.0.1:7080/dynamicmonetization --admin-key administration-key.pem',
    'tallygate console --for 8h',
  ])
}
