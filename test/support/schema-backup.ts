// A schema of PostgreSQL as pg_dump copies it, and as it is put back.
import { execFile } from 'node:child_process'
import { globSync } from 'node:fs'
import { promisify } from 'node:util'
import { runSql } from './postgres-schema.ts'

/** Undefined: it is not where Debian puts it. */
export const PG_DUMP = globSync('/usr/lib/postgresql/*/bin/pg_dump').sort().at(-1)

/** @param schema address that leads into it. Returns what puts the copy in the place of the schema. */
export async function backUpSchema(server: string, schema: string): Promise<() => Promise<void>> {
  if (PG_DUMP === undefined) throw new Error('there is no pg_dump')
  const name = new URL(schema).searchParams.get('options')?.split('=')[1] ?? ''
  const dump = await promisify(execFile)(PG_DUMP, ['--inserts', '--no-owner', `--schema=${name}`, server])
  return async () => {
    await runSql(server, `SET client_min_messages = warning; DROP SCHEMA ${name} CASCADE`)
    await runSql(server, dump.stdout.replaceAll(/^\\.*$/gm, ''))
  }
}
