// Many devices, records, sessions, changes and dead letters, written to the database of a twin that does not run.
import type Sqlite from 'better-sqlite3'

export const SINK = 'removed'

export interface Amounts {
  /** Also of sessions, changes and dead letters. */
  readonly devices: number
  readonly records: number
}

/** @param instanceId of the copied devices */
export function multiplyScene(database: Sqlite.Database, instanceId: string, { devices, records }: Amounts): void {
  multiply(database, 'devices', devices, {
    id: `printf('%08x-0000-4000-8000-000000000000', n)`,
    thumbprint: `'key ' || n`,
  })
  database.exec(
    `INSERT INTO device_instances (instance_id, device_id) SELECT '${instanceId}', id FROM devices WHERE id LIKE '%-0000-4000-8000-000000000000'`,
  )
  database.exec(
    `INSERT INTO device_labels SELECT 'site', CASE WHEN seq % 1000 = 1 THEN 'rare' ELSE 'berlin' END, seq
     FROM devices WHERE id LIKE '%-0000-4000-8000-000000000000'`,
  )
  multiply(database, 'usage', records, {})
  multiply(database, 'sessions', devices, { id: `'session ' || n`, opening: 'NULL' })
  multiply(database, 'audit', devices, {})
  rejectEvents(database, devices)
}

/** A sink that is not in the settings, with as many dead letters. */
function rejectEvents(database: Sqlite.Database, events: number): void {
  database.exec(`INSERT INTO event_sinks (name, position, leased_until) VALUES ('${SINK}', ${events}, 0)`)
  database.exec(
    `WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ${events})
     INSERT INTO dead_letters SELECT '${SINK}', n, 'event ' || n, 'usage', 'status 400', 0, 0 FROM counted`,
  )
}

/** Copies the last row of a table, with other values in some columns; `n` counts. */
function multiply(
  database: Sqlite.Database,
  table: string,
  rows: number,
  values: Readonly<Record<string, string>>,
): void {
  const columns = (database.prepare(`SELECT name FROM pragma_table_info('${table}')`).pluck().all() as string[]).filter(
    (name) => name !== 'seq',
  )
  const source = columns.map((name) => values[name] ?? name).join(', ')
  database.exec(
    `WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ${rows})
     INSERT INTO ${table} (${columns.join(', ')})
     SELECT ${source} FROM counted, (SELECT * FROM ${table} ORDER BY seq DESC LIMIT 1)`,
  )
}
