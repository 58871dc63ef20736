import { Twin } from '../sync/twin.ts'
import { publishEventsSuite } from './publish-events.suite.ts'

publishEventsSuite('events, over SQLite', async () => {
  const twin = await Twin.open()
  return { twin, other: async () => twin.store }
})
