import Database from 'better-sqlite3'
import { databaseFailure } from '../../../platform/database-failure.ts'
import { integrityOf } from '../../../platform/sqlite.ts'
import { CodedError, messageOf } from '../../../protocol/errors.ts'

/** @param name for messages. @throws CodedError DATABASE_CORRUPT */
export function requireIntegrity(path: string, name: string): void {
  const corrupt = (why: string, cause?: unknown): CodedError =>
    new CodedError('DATABASE_CORRUPT', `${name}: ${why}`, { cause, details: { path: name } })
  let database: Database.Database | undefined
  try {
    database = new Database(path, { readonly: true })
    const result = integrityOf(database, 'integrity_check')
    if (result !== 'ok') throw corrupt(`the integrity check reports: ${result}`)
  } catch (error) {
    throw error instanceof CodedError ? error : (databaseFailure(error, path) ?? corrupt(messageOf(error), error))
  } finally {
    database?.close()
  }
}
