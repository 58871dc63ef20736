import { undeliveredSuite } from './undelivered.suite.ts'
import { Twin } from '../twin.ts'

undeliveredSuite('undelivered entries, over SQLite', () => Twin.open())
