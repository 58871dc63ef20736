import { Command } from 'commander'
import { type AdministratorFlags, administrator, targetOf, withAdministratorFlags } from '../administrator.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { columns, jsonLine, writeLines } from '../lines.ts'
import { callerText, readCaller, rightsText } from '../sign-in/caller.ts'

export function command(io: Io): Command {
  const whoami = withAdministratorFlags(new Command('whoami'))
    .description('Shows the signed-in user, or the name of a key, with its roles as the cloud knows them.')
    .option('--json', 'print one JSON document')
    .action(async (flags: AdministratorFlags) => {
      const { url } = targetOf(flags, io)
      using service = await administrator(flags, io)
      const caller = await readCaller(service)
      const rows = [
        ['cloud', url],
        ['user', callerText(caller)],
        ['roles', rightsText(caller)],
      ]
      writeLines(io.stdout, flags.json === true ? [jsonLine({ cloud: url, ...caller })] : columns(rows))
    })
  return examples(whoami, ['tallygate whoami', 'tallygate whoami --url https://cloud.example'])
}
