import { heldSuite } from './held.suite.ts'

heldSuite('a twin over SQLite', async () => (settings) => settings)
