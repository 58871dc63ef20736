import { existsSync } from 'node:fs'
import { dirname } from 'node:path'
import { Command } from 'commander'
import { counted } from '../../core/accounts/in-words.ts'
import type { BootLog } from '../../agent/ledger/volatile-log.ts'
import { openKeyFile, ownKeyFile } from '../../agent/platform/key-file/key-file.ts'
import { type Restored, restoreLedger } from '../../agent/platform/sqlite/restore-ledger.ts'
import { readBootId } from '../../platform/uptime.ts'
import { volatileLogOf } from '../../agent/platform/tmpfs/volatile-log.ts'
import { CodedError } from '../../protocol/errors.ts'
import { inDatabaseProcess } from '../in-database-process.ts'
import { agentDatabase, agentPaths } from '../local-agent.ts'
import type { Io } from '../io.ts'
import { jsonLine, writeLines } from '../lines.ts'

interface RestoreFlags {
  readonly db?: string
  readonly json?: true
}

export function command(io: Io): Command {
  return new Command('restore')
    .description('Replaces the ledger of this device with a backup. Stop the agent first. The old ledger is kept.')
    .argument('<file>', 'file created by tallygate backup')
    .option('--db <path>', 'agent database (default: from the agent settings)')
    .option('--json', 'print one JSON document')
    .action(async (file: string, flags: RestoreFlags) => {
      const path = agentDatabase(flags.db, io)
      const { replaced, undelivered, lost, keyId } = await restoreLedger(file, path, io.now(), {
        left: answeredBefore(path, io),
        replace: (replacement) => inDatabaseProcess<Restored>({ replacement }),
      })
      const keyProblem = await keyToCopy(path, keyId, io)
      const plain = [
        ...previousLedger(replaced, lost),
        'Start the agent. It grants no requests until it has attached to the cloud again.',
        ...deliveryText(undelivered),
        ...keyProblem,
      ]
      const result = { replaced, undelivered, lost, keyProblem: keyProblem.length === 0 ? null : keyProblem.join(' ') }
      writeLines(io.stdout, flags.json === true ? [jsonLine(result)] : plain)
    })
}

/** Backups do not contain the key, and an agent without the key of its ledger does not start. */
async function keyToCopy(path: string, keyId: string | null, io: Io): Promise<readonly string[]> {
  const file = agentPaths(io).device.keyFile ?? ownKeyFile(dirname(path))
  if (!existsSync(file)) return [`The key of this device is missing: copy it to ${file} before you start the agent.`]
  try {
    const { signer } = await openKeyFile({ path: file, create: false })
    if (keyId === null || signer.keyId === keyId) return []
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    return [error.message]
  }
  // It may also be a key that replaced the one of the backup.
  return [
    `${file} is not the key that the ledger names. Unless this device has replaced its key since the backup, copy its key there before you`,
    'start the agent: the cloud refuses the key of another device.',
  ]
}

/** Entries that the agent answered in this boot and may not have written to the ledger. */
function answeredBefore(path: string, io: Io): BootLog | null {
  const bootId = readBootId()
  const log = volatileLogOf(dirname(path), agentPaths(io).writeBehind.directory, bootId).left()
  return log === undefined ? null : { log, bootId }
}

function previousLedger(replaced: string | null, lost: number | null): readonly string[] {
  if (replaced !== null) {
    const kept = `The previous ledger is kept as ${replaced}.`
    return lost === 0 ? [kept] : [kept, `That ledger is damaged: ${lossText(lost)}.`]
  }
  // Without the ledger, its log shows that there was one.
  return lost === 0 ? ['There was no previous ledger.'] : [`The previous ledger is missing: ${lossText(lost)}.`]
}

function deliveryText(undelivered: number): readonly string[] {
  if (undelivered === 0) return []
  const entries = counted(undelivered, 'entry', 'entries')
  return [`Then it delivers ${entries} that the cloud may not have. The cloud bills no entry twice.`]
}

function lossText(lost: number | null): string {
  return lost === null
    ? 'an unknown number of undelivered entries is lost'
    : counted(lost, 'undelivered entry is lost', 'undelivered entries are lost')
}
