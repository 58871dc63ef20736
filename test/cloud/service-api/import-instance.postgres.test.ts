import { PostgresNodes } from '../../support/postgres-nodes.ts'
import { postgres } from '../../support/servers.ts'
import { importInstanceSuite } from './import-instance.suite.ts'

const nodes = new PostgresNodes(postgres())

importInstanceSuite('imports over PostgreSQL', async () => ({
  store: await nodes.first(),
  another: () => nodes.another(),
}))
