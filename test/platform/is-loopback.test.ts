import { expect, test } from 'vitest'
import { isLoopback } from '../../src/platform/is-loopback.ts'

test.each(['localhost', '127.0.0.1', '127.8.7.6', '::1', '[::1]', '::ffff:127.0.0.1'])('%s is this machine', (host) => {
  expect(isLoopback(host)).toBe(true)
})

test.each(['', '0.0.0.0', '::', '128.0.0.1', '::2', '127.0.0.1.example', '127.0.0.256', 'localhost.example'])(
  '%j is another machine',
  (host) => {
    expect(isLoopback(host)).toBe(false)
  },
)
