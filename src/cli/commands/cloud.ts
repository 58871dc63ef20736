import { dirname, join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { Command } from 'commander'
import { cloudOptions } from '../../cloud/settings.ts'
import { counted, grouped } from '../../core/accounts/in-words.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import type { MigrationProgress } from '../../cloud/storage/postgres/migrate-store.ts'
import { actAsOwnerOf } from '../../platform/act-as-owner-of.ts'
import { sizeOf } from '../../platform/database-files.ts'
import { absenceOf } from '../../platform/denial-of.ts'
import { runService } from '../../platform/run-service.ts'
import { CodedError } from '../../protocol/errors.ts'
import { underFileLock } from '../file-lock.ts'
import { givingWay } from '../giving-way.ts'
import { inDatabaseProcess } from '../in-database-process.ts'
import type { Io } from '../io.ts'
import { writeLines } from '../lines.ts'
import { noteBackup } from '../note-backup.ts'
import { refuseItself } from '../refuse-itself.ts'
import { serviceCommand, settingsOf } from '../service-settings.ts'

export function command(io: Io): Command {
  const service = serviceCommand('cloud', cloudOptions)
    .description('Runs the cloud service. The first start creates an administration key and logs its path.')
    .action(async (_flags: unknown, command: Command) => {
      const { startCloud } = await import('../../cloud/compose.ts')
      const { serviceManager } = await import('../service-manager/service-manager.ts')
      const load = () => settingsOf(command, cloudOptions, io)
      const supervisor = serviceManager(io.env, process.pid)
      // By default, the heap grows to a multiple of what is in use while devices deliver: see benchmarks.md.
      setFlagsFromString('--heap-growing-percent=40')
      const stop = io.stop()
      await runService({ load, stop, onReload: io.onHangup }, (settings) => startCloud(settings, { stop, supervisor }))
    })
  return service
    .addCommand(backupCommand(service, io))
    .addCommand(migrateCommand(io))
    .addCommand(rotateCommand(service, io))
    .addCommand(forgetCommand(service, io))
}

/** A command that works on the store of the cloud on this machine. */
export function storeCommand(name: string): Command {
  return belowService(serviceCommand('cloud', cloudOptions), name, new Set([...SHOWN_BELOW, '--db']))
}

/** A subcommand with the flags of the service. Its help shows only the flags that select the store. */
function belowService(service: Command, name: string, shown = SHOWN_BELOW): Command {
  const command = new Command(name)
  for (const option of service.options) if (shown.has(option.long ?? '')) command.addOption(option)
  return command
}

/** Path of an existing database. @throws CodedError USAGE if the directory does not contain one */
export function databaseIn(storePath: string): string {
  const path = join(storePath, 'twin.db')
  const absence = absenceOf(path)
  if (absence === null) return path
  const wanted = 'Give the directory of the cloud (--store-path), as a user who can read it'
  throw new CodedError('USAGE', `The database ${path} ${absence}. ${wanted}.`)
}

const SHOWN_BELOW = new Set(['--config', '--store-path'])

function backupCommand(service: Command, io: Io): Command {
  return belowService(service, 'backup')
    .description('Copies the database of the cloud into one file while the cloud runs, and verifies the copy.')
    .argument('<file>', 'output file; an existing file is replaced once the copy is complete')
    .action(async (file: string) => {
      const { db, cells, store } = settingsOf(service, cloudOptions, io)
      if (db !== null || cells !== null)
        throw new CodedError('USAGE', 'This cloud stores its data in PostgreSQL: use pg_dump.')
      const { backUpStore } = await import('../../cloud/storage/sqlite/backup.ts')
      const database = databaseIn(store.path)
      refuseItself(database, file)
      await backUpStore(database, file, (store) => inDatabaseProcess({ store }))
      const unnoted = noteBackup(database, file, io.now())
      if (unnoted !== null) io.stderr.write(`${unnoted}\n`)
      writeLines(io.stdout, [
        `${file} contains the database. Also back up the keys: *.pem and, if it exists, signing-keys.json in ${store.path}.`,
      ])
    })
}

function migrateCommand(io: Io): Command {
  return new Command('migrate')
    .description(
      'Copies the SQLite database of a stopped cloud into an empty PostgreSQL database, and verifies the copy. Shows the progress every 5 seconds. Run it again to continue an interrupted copy.',
    )
    .requiredOption(
      '--from <sqlite:path>',
      'database file of the cloud, such as sqlite:/var/lib/tallygate/cloud/twin.db',
    )
    .requiredOption('--to <url>', 'address of the database: postgres://user@host/database; PGPASSWORD is its password')
    .action(async ({ from, to }: { from: string; to: string }) => {
      const path = /^sqlite:(.+)$/.exec(from)?.[1]
      if (path === undefined) throw new CodedError('USAGE', '--from takes sqlite: and the path of the file.')
      const absence = absenceOf(path)
      if (absence !== null) throw new CodedError('USAGE', `--from takes a database file, but ${path} ${absence}.`)
      const { migrateStore } = await import('../../cloud/storage/postgres/migrate-store.ts')
      const { openDatabase } = await import('../../cloud/storage/sqlite/database.ts')
      const { claimStore } = await import('../../cloud/storage/sqlite/claim-store.ts')
      using stack = new DisposableStack()
      stack.defer(claimStore(join(dirname(path), 'twin.lock')))
      refuseEmpty(path)
      await checkSource(path, io)
      const source = stack.adopt(openDatabase(path, { check: false }), (database) => database.close())
      const { accounts, charged, grantedOut } = await migrateStore({
        source,
        from: path,
        to,
        onCopied: ({ name, rows, sha256 }) => {
          if (rows > 0) io.stdout.write(`${name}: ${counted(rows, 'row', 'rows')}, SHA-256 ${sha256}\n`)
        },
        onProgress: seldom(io, ({ name, step, rows, all }: MigrationProgress) => {
          const total = all === null ? '' : ` of ${grouped(all)}`
          return `${name}: ${grouped(rows)}${total} rows ${step}`
        }),
        giveWay: givingWay(),
      })
      const tokens = `${formatMicro(charged)} tokens charged by the cloud, ${formatMicro(grantedOut)} granted to devices and not returned`
      io.stdout.write(`The copy is complete and equal: ${counted(accounts, 'account', 'accounts')}, ${tokens}.\n`)
      io.stdout.write(`Start the cloud with this database, and with the same --store-path.\n`)
    })
}

const NO_SOURCE = 'Name the database file that the cloud used last, or a backup of it.'

/** It would become a database without a cloud. @throws CodedError DATABASE_CORRUPT */
function refuseEmpty(path: string): void {
  if (sizeOf(path) !== 0) return
  throw new CodedError('DATABASE_CORRUPT', `${path} is empty.`, { details: { remedy: NO_SOURCE } })
}

/** About a second per gigabyte, or more on a slow disk. @throws CodedError DATABASE_CORRUPT, DATABASE_NEWER, STATE_UNWRITABLE */
async function checkSource(path: string, io: Io): Promise<void> {
  const shown = setInterval(() => writeLines(io.stderr, [`${path}: still checking the file`]), PROGRESS_EVERY_MS)
  try {
    await inDatabaseProcess({ check: path })
  } finally {
    clearInterval(shown)
  }
}

const PROGRESS_EVERY_MS = 5_000

/** Shows the progress of long work on stderr, so that short work is silent. */
function seldom<T>({ now, stderr }: Io, textOf: (progress: T) => string): (progress: T) => void {
  let shownAt = now()
  return (progress) => {
    if (now() - shownAt < PROGRESS_EVERY_MS) return
    shownAt = now()
    writeLines(stderr, [textOf(progress)])
  }
}

const RELOAD = 'reload every node (SIGHUP)'

function rotateCommand(service: Command, io: Io): Command {
  return belowService(service, 'rotate-signing-key')
    .description('Replaces the signing key. The current key signs the new one, so that devices trust it.')
    .action(async () => {
      const { rotateSigningKey } = await import('../../cloud/platform/key-file/keyring-file.ts')
      const path = signingKeyOf(service, io)
      const { from, to } = await changeKeys(path, io, () => rotateSigningKey(path, io.now()))
      io.stdout.write(
        `${path} now contains ${to}, signed by ${from}. Copy it and signing-keys.json to the other nodes, then ${RELOAD}.\n`,
      )
    })
}

function forgetCommand(service: Command, io: Io): Command {
  return belowService(service, 'forget-signing-key')
    .description('Makes devices stop trusting an earlier signing key.')
    .argument('<thumbprint>', 'thumbprint of the key')
    .action(async (keyId: string) => {
      const { forgetSigningKey } = await import('../../cloud/platform/key-file/keyring-file.ts')
      const path = signingKeyOf(service, io)
      await changeKeys(path, io, () => forgetSigningKey(path, keyId))
      io.stdout.write(`${keyId} is no longer trusted. Copy signing-keys.json to the other nodes, then ${RELOAD}.\n`)
    })
}

/** One change at a time: a link of the chain that is lost cannot be made again, and devices do not find the next key. */
async function changeKeys<T>(path: string, io: Io, change: () => Promise<T>): Promise<T> {
  const directory = dirname(path)
  const asOwner = (): Disposable => actAsOwnerOf(directory)
  if (absenceOf(path) === null) return underFileLock(join(directory, 'signing-keys.lock'), change, io, asOwner)
  // Without a key file there is nothing to protect, and the change names the reason.
  using _rights = asOwner()
  return await change()
}

function signingKeyOf(service: Command, io: Io): string {
  return join(settingsOf(service, cloudOptions, io).store.path, 'signing-key.pem')
}
