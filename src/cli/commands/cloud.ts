/** `tallygate cloud`: the twin of the service, until a signal stops it; SIGHUP makes it read its settings again. It logs to standard output, one JSON line each. */
import { join } from 'node:path'
import { Command } from 'commander'
import { cloudOptions } from '../../cloud/settings.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Io } from '../io.ts'
import { noteBackup } from '../note-backup.ts'
import { refuseItself } from '../refuse-itself.ts'
import { serviceCommand, settingsOf } from '../service-settings.ts'

export function command(io: Io): Command {
  const service = serviceCommand('cloud', cloudOptions)
    .description('Runs the cloud twin. Its first start makes an administration key and logs where it is.')
    .action(async (_flags: unknown, command: Command) => {
      const { runCloud } = await import('../../cloud/main.ts')
      const { serviceManager } = await import('../service-manager/service-manager.ts')
      const load = () => settingsOf(command, cloudOptions, io)
      await runCloud({ load, stop: io.stop(), onReload: io.onHangup }, serviceManager(io.env, process.pid))
    })
  return service
    .addCommand(backupCommand(service, io))
    .addCommand(rotateCommand(service, io))
    .addCommand(forgetCommand(service, io))
}

/** A command whose flags are those of the service: its help shows the ones that say which store is meant. */
function belowService(service: Command, name: string): Command {
  const command = new Command(name)
  for (const option of service.options) if (SHOWN_BELOW.has(option.long ?? '')) command.addOption(option)
  return command
}

const SHOWN_BELOW = new Set(['--config', '--store-path'])

function backupCommand(service: Command, io: Io): Command {
  return belowService(service, 'backup')
    .description('Copies the database of a twin into one file while the twin works, and checks the copy.')
    .argument('<file>', 'where to write it; what is there is replaced once the copy is whole')
    .action(async (file: string) => {
      const { db, store } = settingsOf(service, cloudOptions, io)
      if (db !== null) throw new CodedError('USAGE', 'This twin keeps its data in PostgreSQL: use pg_dump.')
      const { backUpStore } = await import('../../cloud/adapters/sqlite/backup.ts')
      const database = join(store.path, 'twin.db')
      refuseItself(database, file)
      backUpStore(database, file)
      const unnoted = noteBackup(database, file, io.now())
      if (unnoted !== null) io.stderr.write(`${unnoted}\n`)
      io.stdout.write(
        `${file} holds the database; the keys are the files *.pem and, where it is there, signing-keys.json in ${store.path}.\n`,
      )
    })
}

const RELOAD = 'have every node reload (SIGHUP)'

function rotateCommand(service: Command, io: Io): Command {
  return belowService(service, 'rotate-signing-key')
    .description('Puts a fresh signing key in the place of the one in force, which introduces it to the devices.')
    .action(async () => {
      const { rotateSigningKey } = await import('../../cloud/adapters/key-file/key-ring-file.ts')
      const path = signingKeyOf(service, io)
      const { from, to } = await rotateSigningKey(path, io.now())
      io.stdout.write(
        `${path} holds ${to}, introduced by ${from}. Copy it and signing-keys.json to the other nodes, then ${RELOAD}.\n`,
      )
    })
}

function forgetCommand(service: Command, io: Io): Command {
  return belowService(service, 'forget-signing-key')
    .description('Has devices no longer believe a signing key from before.')
    .argument('<thumbprint>', 'of the key')
    .action(async (keyId: string) => {
      const { forgetSigningKey } = await import('../../cloud/adapters/key-file/key-ring-file.ts')
      const path = signingKeyOf(service, io)
      await forgetSigningKey(path, keyId)
      io.stdout.write(`${keyId} is trusted no more. Copy signing-keys.json to the other nodes, then ${RELOAD}.\n`)
    })
}

function signingKeyOf(service: Command, io: Io): string {
  return join(settingsOf(service, cloudOptions, io).store.path, 'signing-key.pem')
}
