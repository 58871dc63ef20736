import { syncSuite } from './sync.suite.ts'
import { Twin } from './twin.ts'

syncSuite('segments, over SQLite', () => Twin.open())
