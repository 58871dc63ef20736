/** Where the database is, and how it is named in logs and messages: never with its password. */
import { CodedError } from '../../../protocol/errors.ts'

export interface DatabaseAddress {
  /** With all that is secret: for the driver only. */
  readonly connectionString: string
  /** `postgres://user@host:port/database`, for people. */
  readonly shown: string
}

/**
 * @param url `postgres://user:password@host:port/database?sslmode=verify-full`
 * @param password takes the place of the one in the URL; null: that one, or the one in PGPASSWORD
 * @throws CodedError CONFIG_INVALID
 */
export function databaseAddress(url: string, password: string | null = null): DatabaseAddress {
  // The error of URL holds its input, and with it the password: it is not passed on.
  if (!URL.canParse(url)) throw new CodedError('CONFIG_INVALID', 'The address of the database is not a URL.')
  const parsed = new URL(url)
  if (!/^postgres(ql)?:$/.test(parsed.protocol)) {
    throw new CodedError('CONFIG_INVALID', 'The address of the database must begin with postgres://.')
  }
  const user = parsed.username === '' ? '' : `${parsed.username}@`
  const host = parsed.host === '' ? (parsed.searchParams.get('host') ?? '') : parsed.host
  const shown = `postgres://${user}${host}${parsed.pathname}`
  // A URL without a host, for a Unix socket, takes a password only as a parameter.
  if (password !== null) parsed.searchParams.set('password', password)
  return { connectionString: parsed.href, shown }
}
