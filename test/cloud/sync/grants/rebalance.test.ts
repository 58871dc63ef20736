import { rebalanceSuite } from './rebalance.suite.ts'
import { Twin } from '../twin.ts'

rebalanceSuite('scarcity, over SQLite', () => Twin.open())
