import pg from 'pg'
import { expect, it } from 'vitest'
import { NotConnected, coded } from '../../../../src/cloud/storage/postgres/failures.ts'
import { ERRORS } from '../../../../src/protocol/errors.ts'

const refusedWith = (message: string, code?: string) =>
  Object.assign(new pg.DatabaseError(message, message.length, 'error'), { code, severity: 'FATAL' })

it.each([
  ['its code', refusedWith('Auf dem Gerät ist kein Speicherplatz mehr verfügbar', '53100')],
  ['its text', refusedWith('could not write init file', '58030')],
  ['the text of the system', new Error('could not open file "global/pg_filenode.map": No space left on device')],
  ['the code of one of several hosts', new AggregateError([new Error('refused'), refusedWith('full', '53100')], '')],
])('names the full disk of a server that accepts no connection, by %s', (_what, cause) => {
  const error = coded(new NotConnected('no connection', { cause }), 'postgres://db/tallygate')
  expect(error).toMatchObject({ code: 'DATABASE_UNREACHABLE' })
  expect((error as Error).message).toMatch(/^postgres:\/\/db\/tallygate: .*the disk of the server is full \(/)
  expect(ERRORS.DATABASE_UNREACHABLE.remedy).toContain('free space on the server')
})

it.each([
  [
    'a missing password',
    new Error('SASL: SCRAM-SERVER-FIRST-MESSAGE: client password must be a string'),
    'DATABASE_REFUSED',
    'the server requires a password, and none is set',
  ],
  [
    'an empty password',
    new Error('SASL: SCRAM-SERVER-FIRST-MESSAGE: client password must be a non-empty string'),
    'DATABASE_REFUSED',
    'the server requires a password, and none is set',
  ],
  [
    'a server without TLS',
    new Error('The server does not support SSL connections'),
    'DATABASE_UNREACHABLE',
    'it does not use TLS on this port',
  ],
])('names %s', (_what, cause, code, reason) => {
  expect(coded(new NotConnected('no connection', { cause }), 'postgres://db/tallygate')).toMatchObject({
    code,
    message: `postgres://db/tallygate: ${reason}`,
  })
})
