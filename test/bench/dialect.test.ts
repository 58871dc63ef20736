import { describe, expect, test } from 'vitest'
import { httpDialect } from '../../bench/load/http-dialect.ts'
import { postgresDialect } from '../../bench/load/postgres-dialect.ts'
import { redisCommand, redisDialect } from '../../bench/load/redis-dialect.ts'

describe('HTTP', () => {
  const dialect = httpDialect({ paths: ['/path'], bodies: ['{"é":1}', '{}'], grantMark: 'GRANTED' })
  const answer = Buffer.from('HTTP/1.1 200 OK\r\ncontent-length: 13\r\nX: y\r\n\r\n{"c":"GRANTED')

  test('frames the body by its bytes, and gives each connection its own', () => {
    expect(dialect.request(0).toString()).toContain('Content-Length: 8\r\n\r\n{"é":1}')
    expect(dialect.request(3).toString()).toContain('Content-Length: 2\r\n\r\n{}')
  })

  test('writes a running number into each body, and keeps its length', () => {
    const numbered = httpDialect({ paths: ['/path'], bodies: ['{"job":"000"}'], serial: '000', grantMark: 'GRANTED' })
    const bodies = [0, 1, 0].map((connection) => numbered.request(connection).toString().split('\r\n\r\n')[1])
    expect(bodies).toEqual(['{"job":"001"}', '{"job":"002"}', '{"job":"003"}'])
    const without = httpDialect({ paths: ['/path'], bodies: ['{}'], serial: '000', grantMark: 'GRANTED' })
    expect(() => without.request(0)).toThrow('the body has no 000')
  })

  test('takes the paths in turn', () => {
    const spread = httpDialect({ paths: ['/a', '/b'], bodies: ['1', '2'], grantMark: 'GRANTED' })
    const requests = [0, 1, 1, 0].map((connection) => spread.request(connection).toString())
    expect(requests.map((text) => [text.split(' ')[1], text.at(-1)])).toEqual([
      ['/a', '1'],
      ['/b', '2'],
      ['/a', '2'],
      ['/b', '1'],
    ])
  })

  test('takes an answer when all of it has come', () => {
    for (let length = 0; length < answer.length; length += 1)
      expect(dialect.answerLength(answer.subarray(0, length))).toBe(0)
    expect(dialect.answerLength(answer)).toBe(answer.length)
  })

  test.each([
    ['HTTP/1.1 503 Service Unavailable\r\ncontent-length: 7\r\n\r\nGRANTED', /not a grant: HTTP\/1.1 503/],
    ['HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nDENIED', /not a grant/],
    ['HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n', /without Content-Length/],
  ])('%j ends the run', (text, message) => {
    expect(() => dialect.answerLength(Buffer.from(text))).toThrow(message)
  })
})

describe('Redis', () => {
  const dialect = redisDialect(['SET', 'key-%', 'é'], ':1\r\n')

  test('counts the bytes of each part, and names the connection', () => {
    expect(redisCommand(['GET', 'é']).toString()).toBe('*2\r\n$3\r\nGET\r\n$2\r\né\r\n')
    expect(dialect.request(7).toString()).toContain('$5\r\nkey-7\r\n')
  })

  test('takes the one answer that grants', () => {
    expect(dialect.answerLength(Buffer.from(':1'))).toBe(0)
    expect(dialect.answerLength(Buffer.from(':1\r\n'))).toBe(4)
    expect(() => dialect.answerLength(Buffer.from('-INSUFFICIENT_TOKENS\r\n'))).toThrow(/not a grant: -INSUFFICIENT/)
  })
})

describe('PostgreSQL', () => {
  const message = (kind: string, body: Buffer): Buffer => {
    const head = Buffer.alloc(5)
    head.write(kind)
    head.writeInt32BE(body.length + 4, 1)
    return Buffer.concat([head, body])
  }
  const ready = message('Z', Buffer.from('I'))
  const row = (value: string): Buffer =>
    message('D', Buffer.concat([Buffer.from([0, 1, 0, 0, 0, value.length]), Buffer.from(value)]))
  const dialect = postgresDialect({
    user: 'me',
    database: 'it',
    prepare: 'PREPARE debit',
    statement: 'EXECUTE debit',
    grantAnswer: '1',
  })

  test('opens a connection and prepares the statement on it', () => {
    const { opening } = dialect
    expect(opening?.bytes.includes('user\0me\0database\0it\0\0')).toBe(true)
    expect(opening?.bytes.subarray(-18).toString('latin1')).toBe('\0\0\0\x12PREPARE debit\0')
    const answer = Buffer.concat([message('R', Buffer.alloc(4)), ready, message('C', Buffer.from('PREPARE\0')), ready])
    for (let length = 0; length < answer.length; length += 1)
      expect(opening?.answerLength(answer.subarray(0, length))).toBe(0)
    expect(opening?.answerLength(answer)).toBe(answer.length)
  })

  test('takes the one row that grants', () => {
    expect(dialect.request(3).toString('latin1')).toBe('Q\0\0\0\x12EXECUTE debit\0')
    const answer = Buffer.concat([row('1'), ready])
    expect(dialect.answerLength(answer.subarray(0, answer.length - 1))).toBe(0)
    expect(dialect.answerLength(answer)).toBe(answer.length)
    expect(() => dialect.answerLength(Buffer.concat([row('0'), ready]))).toThrow('not a grant: 0')
    expect(() => dialect.answerLength(ready)).toThrow('not a grant')
    expect(() => dialect.answerLength(message('E', Buffer.from('ALLOCATION_EXHAUSTED')))).toThrow(
      /ALLOCATION_EXHAUSTED/,
    )
  })
})
