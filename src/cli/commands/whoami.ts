/** Shows how the cloud knows the caller. */
import { Command } from 'commander'
import { administrator, withKeyFlags } from '../administrator.ts'
import { urlArgument } from '../arguments.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { columns, jsonLine, writeLines } from '../lines.ts'
import { callerText, readCaller, rightsText } from '../sign-in/caller.ts'
import { chooseCloud } from '../sign-in/kept-sign-in.ts'

interface WhoamiFlags {
  readonly cloud?: string
  readonly adminKey?: string
  readonly kid?: string
  readonly json?: true
}

export function command(io: Io): Command {
  const whoami = withKeyFlags(
    new Command('whoami')
      .description('Shows the signed-in user, or the name of a key, with its roles as the cloud knows them.')
      .option('--cloud <url>', 'address of the cloud (default: the only one with a signed-in user)', urlArgument),
  )
    .option('--json', 'print one JSON document')
    .action((flags: WhoamiFlags) => show(flags, io))
  return examples(whoami, ['tallygate whoami --cloud https://cloud.example/dynamicmonetization'])
}

async function show({ cloud, json, ...key }: WhoamiFlags, io: Io): Promise<void> {
  const url = chooseCloud(cloud, io)
  using client = await administrator({ url, ...key }, io)
  const caller = await readCaller(client)
  const rows = [
    ['cloud', url],
    ['user', callerText(caller)],
    ['roles', rightsText(caller)],
  ]
  writeLines(io.stdout, json === true ? [jsonLine({ cloud: url, ...caller })] : columns(rows))
}
