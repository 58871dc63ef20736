import { Command } from 'commander'
import { type BackedUp, backUpLedger } from '../../agent/platform/sqlite/backup.ts'
import { ERRORS } from '../../protocol/errors.ts'
import { shellWord } from '../../protocol/shell-quoted.ts'
import { agentDatabase } from '../local-agent.ts'
import { inDatabaseProcess } from '../in-database-process.ts'
import type { Io } from '../io.ts'
import { jsonLine, writeLines } from '../lines.ts'
import { noteBackup } from '../note-backup.ts'
import { refuseItself } from '../refuse-itself.ts'

interface BackupFlags {
  readonly db?: string
  readonly json?: true
}

export function command(io: Io): Command {
  return new Command('backup')
    .description(
      'Copies the ledger of this device into one file while the agent runs, and verifies the copy. The copy does not contain the device key.',
    )
    .argument('<file>', 'output file; an existing file is replaced once the copy is complete')
    .option('--db <path>', 'agent database (default: from the agent settings)')
    .option('--json', 'print one JSON document')
    .action(async (file: string, flags: BackupFlags) => {
      const database = agentDatabase(flags.db, io)
      refuseItself(database, file)
      const { deviceId, state, verification } = await backUpLedger(database, file, (ledger) =>
        inDatabaseProcess<BackedUp>({ ledger }),
      )
      const { findings, checked } = verification
      const isWhole = findings.length === 0
      const { epoch, lastEntry } = state
      const summary = { file, deviceId, epoch, lastEntry, whole: isWhole, checked, findings }
      const plain = isWhole
        ? `${file} contains the ledger up to entry ${lastEntry} of epoch ${epoch}. The ledger is intact.`
        : `${file} is an exact copy, but the ledger is not intact. Run tallygate verify --db ${shellWord(file)} to see the problems.`
      writeLines(io.stdout, [flags.json === true ? jsonLine(summary) : plain])
      const unnoted = isWhole ? noteBackup(database, file, io.now()) : null
      if (unnoted !== null) io.stderr.write(`${unnoted}\n`)
      if (!isWhole) io.exitWith(ERRORS.DATABASE_CORRUPT.exit)
    })
}
