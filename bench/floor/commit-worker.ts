/**
 * Commits all waiting rows as one transaction and reports their number once durable. Settings are the agent journal's,
 * but the checkpoint interval is optimal for this table.
 */
import { parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads'
import Database from 'better-sqlite3'
import type { FloorOptions } from './options.ts'

const CHECKPOINT_FRAMES = 4_000

if (parentPort === null) throw new Error('this is the entry of a worker thread')
const port = parentPort
const { databasePath } = workerData as FloorOptions
const database = new Database(databasePath)
database.pragma('locking_mode = EXCLUSIVE')
database.pragma('page_size = 4096')
database.pragma('journal_mode = WAL')
database.pragma('synchronous = FULL')
database.pragma(`wal_autocheckpoint = ${CHECKPOINT_FRAMES}`)
if (database.pragma('synchronous', { simple: true }) !== 2) throw new Error('SQLite did not take synchronous = FULL')
database.exec('CREATE TABLE IF NOT EXISTS entry (id INTEGER NOT NULL PRIMARY KEY, body TEXT NOT NULL) STRICT')
const insert = database.prepare<[string]>('INSERT INTO entry (body) VALUES (?)')

const commit = database.transaction((first: readonly string[]): number => {
  let count = 0
  let rows: readonly string[] | undefined = first
  while (rows !== undefined) {
    for (const row of rows) insert.run(row)
    count += rows.length
    rows = receiveMessageOnPort(port)?.message as readonly string[] | undefined
  }
  return count
})

port.on('message', (rows: readonly string[]) => port.postMessage(commit(rows)))
