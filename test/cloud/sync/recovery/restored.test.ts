import { restoredSuite } from './restored.suite.ts'
import { Twin } from '../twin.ts'

restoredSuite('a restored twin, over SQLite', () => Twin.open())
