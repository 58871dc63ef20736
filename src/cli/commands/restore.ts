/** `tallygate restore`: a backup takes the place of the ledger of a device whose agent does not run. */
import { Command } from 'commander'
import { restoreLedger } from '../../agent/adapters/sqlite/backup.ts'
import { agentDatabase } from '../agent-database.ts'
import type { Io } from '../io.ts'
import { jsonLine } from '../json-line.ts'

interface RestoreFlags {
  readonly db?: string
  readonly json?: true
}

export function command(io: Io): Command {
  return new Command('restore')
    .description(
      'Puts a backup in the place of the ledger of this device, whose agent must not run. Nothing is deleted.',
    )
    .argument('<file>', 'made by tallygate backup')
    .option('--db <path>', "database of the agent (default: the one of the agent's settings)")
    .option('--json', 'for programs: one JSON document')
    .action(async (file: string, flags: RestoreFlags) => {
      const { replaced, undelivered, lost } = await restoreLedger(file, agentDatabase(flags.db, io), io.now())
      const kept = replaced === null ? 'There was no ledger before.' : `The ledger from before is kept as ${replaced}.`
      const plain = [
        `${kept}${lossOf(lost)}`,
        `Start the agent: it attaches anew, delivers ${undelivered} entries that the cloud may lack, and grants nothing until`,
        'then. The cloud knows each entry by its place in the chain: what it has billed already is not billed again.',
      ].join('\n')
      io.stdout.write(`${flags.json === true ? jsonLine({ replaced, undelivered, lost }) : plain}\n`)
    })
}

function lossOf(lost: number | null): string {
  if (lost === 0) return ''
  const what =
    lost === null ? 'What else it owed the cloud is not known' : `${lost} entries that it owed the cloud are lost`
  return `\n${what}: it is damaged.`
}
