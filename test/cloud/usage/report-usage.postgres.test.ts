import { PostgresNodes } from '../../support/postgres-nodes.ts'
import { postgres } from '../../support/servers.ts'
import { reportUsageSuite } from './report-usage.suite.ts'

const nodes = new PostgresNodes(postgres())

reportUsageSuite('the usage report over PostgreSQL', () => nodes.first())
