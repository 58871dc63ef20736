import { deviceKeySuite } from '../devices/device-key.suite.ts'
import { restoredSuite } from './recovery/restored.suite.ts'
import { rebalanceSuite } from './grants/rebalance.suite.ts'
import { expireInactiveSuite } from './grants/expire-inactive.suite.ts'
import { syncSuite } from './sync.suite.ts'
import { undeliveredSuite } from './merge/undelivered.suite.ts'
import { Twin } from './twin.ts'

syncSuite('segments, over SQLite', () => Twin.open())
undeliveredSuite('undelivered entries, over SQLite', () => Twin.open())
rebalanceSuite('scarcity, over SQLite', () => Twin.open())
restoredSuite('a restored twin, over SQLite', () => Twin.open())
expireInactiveSuite('silence, over SQLite', () => Twin.open())
deviceKeySuite('the key of a device, over SQLite', () => Twin.open())
