/** The cloud's in-memory database with the product's migrations; its image is a backup. */
import Sqlite from 'better-sqlite3'
import { type Database, migrations } from '../../src/cloud/storage/sqlite/database.ts'

let empty: Buffer | undefined

export function emptyTwin(): Buffer {
  if (empty === undefined) {
    const database = new Sqlite(':memory:')
    for (const { sql } of migrations()) database.exec(sql)
    empty = database.serialize()
    database.close()
  }
  return empty
}

export function openImage(image: Buffer): Database {
  const database = new Sqlite(image)
  database.defaultSafeIntegers(true)
  database.pragma('foreign_keys = ON')
  return database
}
