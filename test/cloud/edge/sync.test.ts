import { deviceKeySuite } from './device-key.suite.ts'
import { restoredSuite } from './restored.suite.ts'
import { scarceSuite } from './scarce.suite.ts'
import { settleSuite } from './settle.suite.ts'
import { syncSuite } from './sync.suite.ts'
import { undeliveredSuite } from './undelivered.suite.ts'
import { Twin } from './twin.ts'

syncSuite('segments, over SQLite', () => Twin.open())
undeliveredSuite('undelivered entries, over SQLite', () => Twin.open())
scarceSuite('scarcity, over SQLite', () => Twin.open())
restoredSuite('a restored twin, over SQLite', () => Twin.open())
settleSuite('silence, over SQLite', () => Twin.open())
deviceKeySuite('the key of a device, over SQLite', () => Twin.open())
