import { describe, expect, test } from 'vitest'
import { httpDialect } from '../../bench/load/http-dialect.ts'
import { redisCommand, redisDialect } from '../../bench/load/redis-dialect.ts'

describe('HTTP', () => {
  const dialect = httpDialect('/path', ['{"é":1}', '{}'], 'GRANTED')
  const answer = Buffer.from('HTTP/1.1 200 OK\r\ncontent-length: 13\r\nX: y\r\n\r\n{"c":"GRANTED')

  test('frames the body by its bytes, and gives each connection its own', () => {
    expect(dialect.request(0).toString()).toContain('Content-Length: 8\r\n\r\n{"é":1}')
    expect(dialect.request(3).toString()).toContain('Content-Length: 2\r\n\r\n{}')
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
