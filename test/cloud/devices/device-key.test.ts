import { deviceKeySuite } from './device-key.suite.ts'
import { Twin } from '../sync/twin.ts'

deviceKeySuite('the key of a device, over SQLite', () => Twin.open())
