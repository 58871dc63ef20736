// Run by servers.test.ts in a vitest of its own: a test whose server cannot be had in any way.
import { expect, it } from 'vitest'
import { server } from './servers.ts'

const nothing = server('nothing-real', [() => Promise.resolve('no a'), () => Promise.resolve('no b')])

it('needs the server', () => {
  expect(nothing.url).toBe('never reached')
})
