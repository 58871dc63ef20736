/** Address of the database, shown without its password in logs and messages. */
import { CodedError } from '../../../protocol/errors.ts'

export interface DatabaseAddress {
  /** Contains secrets: for the driver only. */
  readonly connectionString: string
  /** `postgres://user@host:port/database`, for messages. */
  readonly shown: string
}

/**
 * @param url `postgres://user:password@host:port/database?sslmode=verify-full`
 * @param password overrides the one in the URL; null: use that one or PGPASSWORD
 * @throws CodedError CONFIG_INVALID
 */
export function databaseAddress(url: string, password: string | null = null): DatabaseAddress {
  // URL's own error contains the password: do not pass it on.
  if (!URL.canParse(url)) throw new CodedError('CONFIG_INVALID', 'The address of the database is not a URL.')
  const parsed = new URL(url)
  if (!/^postgres(ql)?:$/.test(parsed.protocol)) {
    throw new CodedError('CONFIG_INVALID', 'The address of the database must begin with postgres://.')
  }
  const user = parsed.username === '' ? '' : `${parsed.username}@`
  const host = parsed.host === '' ? (parsed.searchParams.get('host') ?? '') : parsed.host
  const shown = `postgres://${user}${host}${parsed.pathname}`
  // A Unix socket URL has no host, so the password must be a parameter.
  if (password !== null) parsed.searchParams.set('password', password)
  return { connectionString: parsed.href, shown }
}
