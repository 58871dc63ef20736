import { readFileSync, readdirSync } from 'node:fs'

/** A numbered SQL file. It runs once, in sequence, and never changes after its release. */
export interface Migration {
  readonly number: number
  readonly sql: string
}

/**
 * `0001-service.sql`, `0002-...sql` and so on, without gaps.
 * @param folder with a trailing slash
 */
export function readMigrations(folder: URL): readonly Migration[] {
  const names = readdirSync(folder)
    .filter((name) => name.endsWith('.sql'))
    .sort()
  return names.map((name, index) => {
    const number = Number(/^(\d{4})-/.exec(name)?.[1])
    if (number !== index + 1) throw new Error(`invariant: migration ${name} is number ${index + 1}`)
    return { number, sql: readFileSync(new URL(name, folder), 'utf8') }
  })
}
