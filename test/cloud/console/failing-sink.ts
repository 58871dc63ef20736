import { join } from 'node:path'
import Sqlite from 'better-sqlite3'
import { MINUTE, type Twin } from '../harness.ts'

/** Makes a sink `billing` that another node has, and whose receiver has rejected so many events. */
export function makeFailingSink(twin: Twin, deadLetters: number, problem: string): void {
  using stack = new DisposableStack()
  const database = stack.adopt(new Sqlite(join(twin.settings.store.path, 'twin.db')), (opened) => opened.close())
  database
    .prepare(
      `INSERT INTO event_sinks (name, position, leased_until, failing_since, problem, retry_at)
       VALUES ('billing', 0, 0, ?, 'it responded with 503', ?)`,
    )
    .run(twin.now, twin.now + 3 * MINUTE)
  const insert = database.prepare(`INSERT INTO dead_letters VALUES ('billing', ?, ?, 'usage', ?, ?, 0)`)
  for (let n = 1; n <= deadLetters; n += 1) insert.run(n, `event-${n}`, problem, twin.now)
}
