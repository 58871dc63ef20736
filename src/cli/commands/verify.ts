/** Works without agent and cloud, and also while the agent runs. */
import { statSync } from 'node:fs'
import { Command } from 'commander'
import { counted } from '../../core/accounts/in-words.ts'
import { readLedger } from '../../agent/platform/sqlite/read-ledger.ts'
import { type Finding, type ReadableLedger, type Verification, verifyLedger } from '../../agent/ledger/verify-ledger.ts'
import { givingWay } from '../giving-way.ts'
import { ENGINE } from '../../core/engine.ts'
import { orNull } from '../../platform/or-null.ts'
import { TEXT_BYTES_MAX } from '../../platform/read-file.ts'
import { CodedError, ERRORS, firstProblem } from '../../protocol/errors.ts'
import { isNotUtf8 } from '../../protocol/file-reasons.ts'
import { type LedgerBundle, ledgerBundle } from '../../protocol/local/ledger-bundle.ts'
import { agentDatabase } from '../local-agent.ts'
import { readFileArgument } from '../arguments.ts'
import type { Io } from '../io.ts'
import { jsonLine, writeLines } from '../lines.ts'
import { isNoFile, writeFileAtomically } from '../atomic-write.ts'
import { refuseItself } from '../refuse-itself.ts'

interface VerifyFlags {
  readonly db?: string
  readonly export?: string
  readonly json?: true
}

export function command(io: Io): Command {
  return new Command('verify')
    .description(
      'Checks the ledger of a device: hash chains, receipts, counters and grants. Exit code 65 if there is a problem.',
    )
    .argument('[bundle]', 'exported ledger, instead of a database')
    .option('--db <path>', 'agent database, opened read-only (default: from the agent settings)')
    .option('--export <file>', 'write the checked ledger to this file, atomically')
    .option('--json', 'print one JSON document')
    .action(async (bundle: string | undefined, flags: VerifyFlags) => {
      if (bundle !== undefined && flags.db !== undefined) {
        throw new CodedError('USAGE', 'Give a bundle or --db, not both.')
      }
      const verify = async (ledger: ReadableLedger): Promise<Verification> => {
        if (flags.export !== undefined) await writeFileAtomically(flags.export, exported(ledger))
        return await verifyLedger(ledger, givingWay())
      }
      const path = bundle ?? databaseOf(flags, io)
      const verification =
        bundle === undefined ? await readLedger(path, verify) : await verify(inOrder(readBundle(path, io)))
      const isWhole = verification.findings.length === 0
      writeLines(
        io.stdout,
        flags.json === true ? [jsonLine({ path, whole: isWhole, ...verification })] : describe(path, verification),
      )
      const problem = flags.export === undefined ? null : sizeProblem(flags.export)
      if (problem !== null) io.stderr.write(`${problem} ${TOO_LARGE}\n`)
      if (!isWhole) io.exitWith(ERRORS.DATABASE_CORRUPT.exit)
    })
}

function databaseOf(flags: VerifyFlags, io: Io): string {
  const database = agentDatabase(flags.db, io)
  if (flags.export !== undefined && !isNoFile(flags.export)) refuseItself(database, flags.export)
  return database
}

const NO_BUNDLE = 'Use a file of `tallygate verify --export`. If it is a database, name it with --db.'

function readBundle(path: string, io: Io): LedgerBundle {
  const unreadable = (why: string, cause?: unknown): CodedError =>
    new CodedError('LEDGER_UNREADABLE', `${path} ${why}.`, { cause, details: { path, remedy: NO_BUNDLE } })
  let value: unknown
  try {
    value = JSON.parse(readFileArgument(io, path, 'LEDGER_UNREADABLE'))
  } catch (cause) {
    const problem = sizeProblem(path)
    if (problem !== null)
      throw new CodedError('LEDGER_UNREADABLE', problem, { cause, details: { path, remedy: TOO_LARGE } })
    if (cause instanceof CodedError && !isNotUtf8(cause.cause)) throw cause
    throw unreadable('is not JSON', cause)
  }
  const parsed = ledgerBundle.safeParse(value)
  if (!parsed.success) throw unreadable(`is not an exported ledger: ${firstProblem(parsed.error, 'bundle')}`)
  return parsed.data
}

function inOrder(ledger: LedgerBundle): ReadableLedger {
  return {
    ...ledger,
    entries: ledger.entries.toSorted((a, b) => a.id - b.id),
    segments: ledger.segments.toSorted((a, b) => a.epoch - b.epoch || a.seq - b.seq),
  }
}

/** As a {@link LedgerBundle}, in pieces. */
async function* exported({ entries, segments, ...others }: ReadableLedger): AsyncGenerator<string> {
  yield JSON.stringify(others).slice(0, -1)
  yield* listed(',"entries":[', entries)
  yield* listed('],"segments":[', segments)
  yield ']}\n'
}

/** Why this command cannot read an export of this size; null: it can. */
export function sizeProblem(path: string): string | null {
  const size = orNull(() => statSync(path).size) ?? 0
  return size <= TEXT_BYTES_MAX
    ? null
    : `${path} is larger than ${TEXT_BYTES_MAX / 1024 / 1024} MiB, so tallygate verify cannot read it.`
}

const TOO_LARGE =
  'To check this ledger elsewhere, make a copy of the database with tallygate backup, and name the copy with --db.'

const PIECE_LENGTH = 64 * 1024

function* listed(begin: string, rows: Iterable<unknown>): Generator<string> {
  let piece = begin
  let comma = ''
  for (const row of rows) {
    piece += comma + JSON.stringify(row)
    comma = ','
    if (piece.length < PIECE_LENGTH) continue
    yield piece
    piece = ''
  }
  yield piece
}

function describe(path: string, { findings, checked, engines }: Verification): readonly string[] {
  const { entries, chained, segments, receipts, accounts } = checked
  const looked = [
    `${counted(entries, 'entry', 'entries')} (${chained} chained)`,
    counted(segments, 'segment', 'segments'),
    counted(receipts, 'receipt', 'receipts'),
    counted(accounts, 'account', 'accounts'),
  ].join(', ')
  const line = ({ kind, where, problem }: Finding): string => `! ${where}: ${kind}: ${problem}`
  const others = engines
    .filter(({ engine }) => engine !== ENGINE.version)
    .map(({ engine, entries: decided }) => {
      const what = counted(decided, 'entry was', 'entries were')
      return `${what} decided by engine ${engine}, this is engine ${ENGINE.version}: the decisions are not compared.`
    })
  if (findings.length === 0) return [`The ledger in ${path} is intact: checked ${looked}.`, ...others]
  return [`The ledger in ${path} is not intact: checked ${looked}.`, ...findings.map(line), ...others]
}
