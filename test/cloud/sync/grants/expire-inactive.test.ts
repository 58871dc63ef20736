import { expireInactiveSuite } from './expire-inactive.suite.ts'
import { Twin } from '../twin.ts'

expireInactiveSuite('silence, over SQLite', () => Twin.open())
