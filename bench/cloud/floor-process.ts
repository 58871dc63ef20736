/**
 * The cloud's baseline: same HTTP framework, empty handler, one durable row per response. Reads neither token nor body.
 */
import Fastify from 'fastify'
import pg from 'pg'
import { GroupCommit } from '../floor/group-commit.ts'
import { FLOOR_MARK } from '../floor/options.ts'

export interface CloudFloorOptions {
  readonly databasePath: string
  /** Null: SQLite. */
  readonly postgresUrl: string | null
  readonly rowBytes: number
  readonly answerBytes: number
}

const options = JSON.parse(process.argv[2] ?? '') as CloudFloorOptions
const answer = `{${FLOOR_MARK}${'a'.repeat(options.answerBytes)}"}`
const record = options.postgresUrl === null ? recordInSqlite() : await recordInPostgres(options.postgresUrl)

function recordInSqlite(): () => Promise<unknown> {
  const commits = new GroupCommit({ ...options, stack: 'fastify', socketPath: '' })
  return () => new Promise<void>((resolve) => commits.record(resolve))
}

async function recordInPostgres(connectionString: string): Promise<() => Promise<unknown>> {
  // As many connections as a cloud node.
  const pool = new pg.Pool({ connectionString, max: 10 })
  await pool.query(
    'CREATE TABLE IF NOT EXISTS floor_entry (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body TEXT NOT NULL)',
  )
  await pool.query('TRUNCATE floor_entry')
  const row = 'r'.repeat(options.rowBytes)
  return () => pool.query({ name: 'floor', text: 'INSERT INTO floor_entry (body) VALUES ($1)', values: [row] })
}

const app = Fastify()
app.removeAllContentTypeParsers()
app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
app.post('*', async (_request, reply) => {
  await record()
  return reply.type('application/json').send(answer)
})
process.on('disconnect', () => process.exit(0))
await app.listen({ host: '127.0.0.1', port: 0 })
const address = app.server.address()
process.send?.({ port: typeof address === 'object' ? address?.port : 0 })
