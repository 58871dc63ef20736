import { reservedTokensSuite } from './reserved-tokens.suite.ts'

reservedTokensSuite('a twin over SQLite', async () => (settings) => settings)
