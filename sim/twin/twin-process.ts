import type { Engine } from '../../src/core/engine.ts'
import type { Authenticator } from '../../src/cloud/service-api/authenticate.ts'
import type { CloudShortages } from '../../src/cloud/sync/grants/cloud-shortages.ts'
import type { Keyring } from '../../src/cloud/devices/keyring.ts'
import type { EdgeTerms } from '../../src/cloud/devices/terms.ts'
import type { Policies } from '../../src/cloud/policy/load-policy.ts'
import type { AccessBatcher } from '../../src/cloud/service-api/request-access.ts'
import type { SyncDeps } from '../../src/cloud/sync/merge-context.ts'
import type { SyncBatcher } from '../../src/cloud/sync/sync-batcher.ts'
import type { Store } from '../../src/cloud/storage/store.ts'
import type { CellsOfNode } from './cells-of-node.ts'

export interface TwinProcess {
  readonly alive: boolean
  readonly store: Store
  readonly policies: Policies
  readonly batcher: AccessBatcher
  readonly syncBatcher: SyncBatcher
  readonly heartbeat: SyncDeps['heartbeat']
  readonly shortages: CloudShortages
  readonly authenticator: Authenticator
  readonly keys: Keyring
  readonly terms: EdgeTerms
  readonly now: () => number
  readonly present: () => number
  readonly trustsClock: () => boolean
  /** Does nothing if the clock is not in doubt. */
  readonly confirmClock: () => Promise<void>
  readonly newId: () => string
  readonly engine: Engine
  /** Null: the cloud has one database. */
  readonly cells: CellsOfNode | null
}
