import Sqlite from 'better-sqlite3'
import { expect, it } from 'vitest'
import { coded } from '../../../../src/cloud/storage/sqlite/database.ts'

it('tells callers that the database is locked, and only operators where it is', () => {
  const error = coded(new Sqlite.SqliteError('database is locked', 'SQLITE_BUSY'), '/var/lib/cloud/twin.db')
  expect(error).toMatchObject({ code: 'OVERLOADED', details: { path: '/var/lib/cloud/twin.db' } })
  expect((error as Error).message).toBe('The database is locked by another process.')
})
