// Many devices, records, sessions and changes, written to the database of a twin that does not run.
import type Sqlite from 'better-sqlite3'

export interface Amounts {
  /** Also of sessions and of changes. */
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
