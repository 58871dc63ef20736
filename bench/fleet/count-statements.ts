/** Preloaded into a cloud process: counts the statements that it sends to its database, and tells them on request. */
import Database from 'better-sqlite3'
import pg from 'pg'

let statements = 0

type Prepare = (this: Database.Database, source: string) => Database.Statement

const prepare = Reflect.get(Database.prototype, 'prepare') as Prepare
Database.prototype.prepare = function (this: Database.Database, source: string) {
  const statement = prepare.call(this, source)
  for (const name of ['run', 'get', 'all', 'iterate'] as const) {
    const call = statement[name].bind(statement) as (...values: unknown[]) => unknown
    Object.defineProperty(statement, name, {
      value: (...values: unknown[]) => {
        statements += 1
        return call(...values)
      },
    })
  }
  return statement
} as typeof Database.prototype.prepare

const query = Reflect.get(pg.Client.prototype, 'query') as (...values: unknown[]) => unknown
pg.Client.prototype.query = function (this: pg.Client, ...values: unknown[]) {
  statements += 1
  return query.apply(this, values)
} as typeof pg.Client.prototype.query

process.on('message', () => process.send?.(statements))
// A cloud ends when its work is done.
process.channel?.unref()
