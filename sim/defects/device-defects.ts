/**
 * Where defects hook into a device: at seams of the simulation, never in the product. Each default does nothing;
 * defects override some.
 */
import type { HttpExchange } from '../../src/agent/platform/http/exchange.ts'
import type { Journal } from '../../src/agent/ledger/journal.ts'
import type { AssembledAgent } from '../../src/agent/assemble.ts'
import type { LeftLog, VolatileLog } from '../../src/agent/ledger/volatile-log.ts'
import type { Disk } from '../device/disk.ts'
import type { VolatileMemory } from '../device/volatile-memory.ts'
import type { KeyPair } from '../world/signatures.ts'

export interface DeviceDefects {
  journal(journal: Journal, disk: Disk): Journal
  exchange(exchange: HttpExchange, key: KeyPair): HttpExchange
  onTaken(disk: Disk): void
  onProcessEnd(disk: Disk): void
  onPowerCut(disk: Disk): void
  log(log: VolatileLog, memory: VolatileMemory): VolatileLog
  left(left: LeftLog | undefined): LeftLog | undefined
  salvages(left: LeftLog | undefined): LeftLog | undefined
  agent(agent: AssembledAgent): void
  /** Part of the sleep that the boot-time clock misses, ms. */
  unseen(sleptFor: number): number
}

export const SOUND_DEVICE: DeviceDefects = {
  journal: (journal) => journal,
  exchange: (exchange) => exchange,
  onTaken: () => undefined,
  onProcessEnd: () => undefined,
  onPowerCut: () => undefined,
  log: (log) => log,
  left: (left) => left,
  salvages: (left) => left,
  agent: () => undefined,
  unseen: () => 0,
}
