/**
 * Where a device can be made wrong on purpose: at the seams of the simulation, never in the product. What is named here
 * does nothing; each defect overrides some of it.
 */
import type { HttpExchange } from '../../src/agent/platform/http/exchange.ts'
import type { JournalCall } from '../../src/agent/platform/sqlite/journal-calls.ts'
import type { Journal } from '../../src/agent/ledger/journal.ts'
import type { AssembledAgent } from '../../src/agent/assemble.ts'
import type { LeftLog } from '../../src/agent/ledger/volatile-log.ts'
import type { Disk } from '../device/disk.ts'
import type { KeyPair } from '../world/signatures.ts'

export interface DeviceDefects {
  /** The journal as the agent sees it. */
  journal(journal: Journal, disk: Disk): Journal
  /** The way to the twin as the agent sees it. */
  exchange(exchange: HttpExchange, key: KeyPair): HttpExchange
  /** A call had its effect on the disk. */
  onTaken(disk: Disk, call: JournalCall): void
  /** The process is gone, whatever the reason. */
  onProcessEnd(disk: Disk): void
  onPowerCut(disk: Disk): void
  /** The volatile log that a start finds. */
  left(left: LeftLog | undefined): LeftLog | undefined
  /** The volatile log that a damaged ledger is salvaged with. */
  salvages(left: LeftLog | undefined): LeftLog | undefined
  /** The parts of an agent, before it starts. */
  agent(agent: AssembledAgent): void
  /** How much of the time that a board slept its boot-time clock does not see, ms. */
  unseen(sleptFor: number): number
}

export const SOUND_DEVICE: DeviceDefects = {
  journal: (journal) => journal,
  exchange: (exchange) => exchange,
  onTaken: () => undefined,
  onProcessEnd: () => undefined,
  onPowerCut: () => undefined,
  left: (left) => left,
  salvages: (left) => left,
  agent: () => undefined,
  unseen: () => 0,
}
