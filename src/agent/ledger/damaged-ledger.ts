/**
 * Reports damaged ledgers that were put aside, in the status and in a log line at each start, for as long as the file
 * exists.
 */
import type { AgentStatusWire } from '../../protocol/local/status.ts'
import type { SalvageRecord } from './journal.ts'
import type { LinkLog } from '../sync/ports.ts'

const CODE = 'DATABASE_CORRUPT'

export function conditionOf({
  at,
  file,
  salvagedEntries,
  lostEntries,
}: SalvageRecord): AgentStatusWire['conditions'][number] {
  const lost = lostEntries === null ? 'what else it held is not known' : `${lostEntries} could not be read`
  const message = `The ledger was damaged and is kept as ${file}: ${salvagedEntries} undelivered entries were salvaged, ${lost}.`
  return { subject: 'damaged ledger', code: CODE, message, since: at }
}

export function logDamaged(log: Pick<LinkLog, 'warn'>, salvages: readonly SalvageRecord[]): void {
  for (const { at, file, why, salvagedEntries, lostEntries } of salvages) {
    log.warn(
      { code: CODE, file, at, why, salvagedEntries, lostEntries, remedy: REMEDY },
      'journal.db in the state directory could not be used as a ledger: it was put aside as the named file, and another one has taken its place',
    )
  }
}

const REMEDY =
  'Look for the cause (disk, power, another program). Keep the file while use that is not billed may be in it; the warning ends when it is moved away.'
