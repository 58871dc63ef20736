/** One life of the twin, as what works in it sees it. */
import type { Authenticator } from '../../src/cloud/app/authenticate.ts'
import type { CloudShortages } from '../../src/cloud/app/cloud-shortages.ts'
import type { KeyRing } from '../../src/cloud/app/edge/key-ring.ts'
import type { EdgeTerms } from '../../src/cloud/app/edge/terms.ts'
import type { Policies } from '../../src/cloud/app/load-policy.ts'
import type { AccessDesk } from '../../src/cloud/app/request-access.ts'
import type { Store } from '../../src/cloud/app/store.ts'
import type { TwinDefects } from '../defects/twin-defects.ts'

export interface TwinProcess {
  readonly alive: boolean
  readonly store: Store
  readonly policies: Policies
  readonly desk: AccessDesk
  readonly shortages: CloudShortages
  readonly authenticator: Authenticator
  readonly keys: KeyRing
  readonly terms: EdgeTerms
  readonly defects: Pick<TwinDefects, 'attach' | 'sync'>
  readonly now: () => number
  readonly present: () => number
  readonly trustsClock: () => boolean
  readonly newId: () => string
}
