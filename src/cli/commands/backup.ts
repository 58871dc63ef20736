/** `tallygate backup`: one verified file with all that the ledger of a device holds, made while the agent runs. */
import { Command } from 'commander'
import { backUpLedger } from '../../agent/adapters/sqlite/backup.ts'
import { verifyLedger } from '../../agent/app/verify-ledger.ts'
import { ERRORS } from '../../protocol/errors.ts'
import { agentDatabase } from '../agent-database.ts'
import type { Io } from '../io.ts'
import { jsonLine } from '../json-line.ts'
import { noteBackup } from '../note-backup.ts'
import { refuseItself } from '../refuse-itself.ts'

interface BackupFlags {
  readonly db?: string
  readonly json?: true
}

export function command(io: Io): Command {
  return new Command('backup')
    .description(
      'Copies the ledger of this device into one file while the agent runs, and checks the copy. The key of the device is not in it.',
    )
    .argument('<file>', 'where to write it; what is there is replaced once the copy is whole')
    .option('--db <path>', "database of the agent (default: the one of the agent's settings)")
    .option('--json', 'for programs: one JSON document')
    .action(async (file: string, flags: BackupFlags) => {
      const database = agentDatabase(flags.db, io)
      refuseItself(database, file)
      const bundle = await backUpLedger(database, file)
      const { findings, checked } = await verifyLedger(bundle)
      const isWhole = findings.length === 0
      const { deviceId, state } = bundle
      const said = {
        file,
        deviceId,
        incarnation: state.incarnation,
        lastEntry: state.lastEntry,
        whole: isWhole,
        checked,
      }
      const plain = isWhole
        ? `${file} holds the ledger up to entry ${state.lastEntry} of incarnation ${state.incarnation}; it is whole.`
        : `${file} is a faithful copy of a ledger that is not whole: tallygate verify --db ${file} says what is wrong.`
      io.stdout.write(`${flags.json === true ? jsonLine({ ...said, findings }) : plain}\n`)
      const unnoted = isWhole ? noteBackup(database, file, io.now()) : null
      if (unnoted !== null) io.stderr.write(`${unnoted}\n`)
      if (!isWhole) io.exitWith(ERRORS.DATABASE_CORRUPT.exit)
    })
}
