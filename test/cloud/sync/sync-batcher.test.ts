import { syncBatcherSuite } from './sync-batcher.suite.ts'
import { Twin } from './twin.ts'

syncBatcherSuite('concurrent syncs, over SQLite', () => Twin.open())
