import type { Command } from 'commander'
import { sessionCommandResult } from '../../protocol/edge/administration.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { uuidArgument } from '../arguments.ts'
import type { Io } from '../io.ts'
import { jsonLine, writeLines } from '../lines.ts'
import { nounCommand } from '../nouns/command.ts'

const COMMANDS = [
  ['lock', 'Suspends a session until it is unlocked.'],
  ['unlock', 'Resumes a locked session.'],
  ['terminate', 'Ends a session, also one that a device keeps.'],
] as const

export function command(io: Io): Command {
  const group = nounCommand('sessions', io).description(
    'Manages sessions in the cloud. The list has up to 100 live sessions, newest first.',
  )
  for (const [name, description] of COMMANDS) {
    withAdministratorFlags(group.command(name).argument('<id>', 'session', uuidArgument))
      .description(description)
      .option('--json', 'print one JSON document')
      .action(async (id: string, flags: AdministratorFlags) => {
        using service = await administrator(flags, io)
        const path = `/edge/api/v1/sessions/${id}/${name}`
        const answer = await service.json({ method: 'POST', path, body: {} }, sessionCommandResult)
        const { state, outcome } = answer
        const text = outcome === 'DONE' ? state : `${state}; the device receives the command with its next sync`
        writeLines(io.stdout, [flags.json === true ? jsonLine(answer) : text])
      })
  }
  return group
}
