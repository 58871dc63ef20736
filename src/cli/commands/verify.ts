/**
 * `tallygate verify`: whether the ledger of a device is whole, checked without the agent and without the cloud, from its
 * database (also while the agent runs) or from a bundle that was exported from it.
 */
import { Command } from 'commander'
import { readLedger } from '../../agent/adapters/sqlite/read-ledger.ts'
import { type Finding, type Verification, verifyLedger } from '../../agent/app/verify-ledger.ts'
import { CodedError, ERRORS, firstProblem } from '../../protocol/errors.ts'
import { type LedgerBundle, ledgerBundle } from '../../protocol/local/ledger-bundle.ts'
import { agentDatabase } from '../agent-database.ts'
import { readFileArgument } from '../arguments.ts'
import type { Io } from '../io.ts'
import { jsonLine } from '../json-line.ts'
import { writeWholeFile } from '../whole-file.ts'
import { writeLines } from '../lines.ts'

interface VerifyFlags {
  readonly db?: string
  readonly export?: string
  readonly json?: true
}

export function command(io: Io): Command {
  return new Command('verify')
    .description(
      'Checks the ledger of a device: chains, receipts, counters, grants. Exit code 65 when something is wrong.',
    )
    .argument('[bundle]', 'an exported ledger, in place of a database')
    .option('--db <path>', "database of the agent, only read (default: the one of the agent's settings)")
    .option('--export <file>', 'write what was checked as a bundle, as a whole or not at all')
    .option('--json', 'for programs: one JSON document')
    .action(async (bundle: string | undefined, flags: VerifyFlags) => {
      if (bundle !== undefined && flags.db !== undefined) {
        throw new CodedError('USAGE', 'Give a bundle or --db, not both.')
      }
      const ledger = bundle === undefined ? await readLedger(agentDatabase(flags.db, io)) : readBundle(bundle, io)
      if (flags.export !== undefined) await writeWholeFile(flags.export, pieces(ledger))
      const verification = await verifyLedger(ledger)
      const isWhole = verification.findings.length === 0
      writeLines(
        io.stdout,
        flags.json === true ? [jsonLine({ whole: isWhole, ...verification })] : describe(verification),
      )
      if (!isWhole) io.exitWith(ERRORS.DATABASE_CORRUPT.exit)
    })
}

/** @throws CodedError LEDGER_UNREADABLE */
function readBundle(path: string, io: Io): LedgerBundle {
  const unreadable = (why: string, cause?: unknown): CodedError =>
    new CodedError('LEDGER_UNREADABLE', `${path}: ${why}`, { cause, facts: { path } })
  const text = readFileArgument(io, path, 'LEDGER_UNREADABLE')
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (cause) {
    throw unreadable('it is no JSON.', cause)
  }
  const parsed = ledgerBundle.safeParse(value)
  if (!parsed.success) throw unreadable(firstProblem(parsed.error, 'bundle'))
  return parsed.data
}

async function* pieces(ledger: LedgerBundle): AsyncIterable<Uint8Array> {
  yield await Promise.resolve(Buffer.from(`${JSON.stringify(ledger)}\n`))
}

function describe({ findings, checked }: Verification): readonly string[] {
  const { entries, chained, segments, receipts, accounts } = checked
  const looked = [
    `${counted(entries, 'entry', 'entries')} (${chained} chained)`,
    counted(segments, 'segment', 'segments'),
    counted(receipts, 'receipt', 'receipts'),
    counted(accounts, 'account', 'accounts'),
  ].join(', ')
  const line = ({ kind, where, problem }: Finding): string => `! ${where}: ${kind}: ${problem}`
  if (findings.length === 0) return [`The ledger is whole: ${looked}.`]
  return [`The ledger is not whole; looked at ${looked}.`, ...findings.map(line)]
}

function counted(count: number, one: string, many: string): string {
  return `${count} ${count === 1 ? one : many}`
}
