import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import pg from 'pg'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { prepareDatabase } from '../../../../src/cloud/storage/postgres/database.ts'
import { NotConnected, coded } from '../../../../src/cloud/storage/postgres/failures.ts'
import { databaseAddress } from '../../../../src/cloud/storage/postgres/hosts.ts'
import { LIMITS } from '../../../../src/cloud/storage/postgres/limits.ts'
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

it('names a server without TLS', () => {
  const cause = new Error('The server does not support SSL connections')
  expect(coded(new NotConnected('no connection', { cause }), 'postgres://db/tallygate')).toMatchObject({
    code: 'DATABASE_UNREACHABLE',
    message: 'postgres://db/tallygate: it does not use TLS on this port',
  })
})

describe('a server that requires a password', () => {
  const KINDS = [
    ['in clear text', 3, ''],
    ['as MD5', 5, 'salt'],
    ['by SCRAM', 10, 'SCRAM-SHA-256\0\0'],
  ] as const
  const PASSWORDS = [
    ['missing', 'ada'],
    ['empty', 'ada:'],
  ] as const
  it.each(
    PASSWORDS.flatMap(([what, user]) => KINDS.map(([how, kind, data]) => [how, what, user, kind, data] as const)),
  )('and gets it %s, is named if it is %s, and gets none', async (_how, _what, user, kind, data) => {
    vi.stubEnv('PGPASSWORD', undefined)
    const received: string[] = []
    const server = createServer((socket) => {
      socket.on('data', (sent) => {
        received.push(String(sent))
        if (received.length > 1) socket.destroy()
        else socket.write(authenticationRequest(kind, data))
      })
    }).listen(0, '127.0.0.1')
    await once(server, 'listening')
    onTestFinished(() => void server.close())
    const { port } = server.address() as AddressInfo
    const opened = prepareDatabase(databaseAddress(`postgres://${user}@127.0.0.1:${port}/tallygate`), LIMITS)
    await expect(opened).rejects.toMatchObject({
      code: 'DATABASE_REFUSED',
      message: `postgres://ada@127.0.0.1:${port}/tallygate: the server requires a password, and none is set`,
    })
    // p: a password
    expect(received.map(([first]) => first)).not.toContain('p')
  })
})

function authenticationRequest(kind: number, data: string): Buffer {
  const head = Buffer.alloc(9, 'R')
  head.writeInt32BE(8 + data.length, 1)
  head.writeInt32BE(kind, 5)
  return Buffer.concat([head, Buffer.from(data)])
}
