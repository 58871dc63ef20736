import { expect, it } from 'vitest'
import { Turns } from '../../../src/cloud/runtime/turns.ts'

/** Work that ends when the test says so. */
function pieceOf(begun: string[], name: string) {
  const { promise, resolve, reject } = Promise.withResolvers<string>()
  const work = () => {
    begun.push(name)
    return promise
  }
  return { work, end: () => resolve(name), fail: () => reject(new Error(name)) }
}
const settle = () => new Promise((resolve) => setImmediate(resolve))

it('a few pieces of work run at a time, the others follow in order, whether the ones before succeed or fail', async () => {
  const turns = new Turns(2)
  const begun: string[] = []
  const pieces = ['a', 'b', 'c', 'd', 'e'].map((name) => pieceOf(begun, name))
  const results = Promise.allSettled(pieces.map(({ work }) => turns.take(work)))
  await settle()
  expect(begun).toEqual(['a', 'b'])
  pieces[1]?.fail()
  await settle()
  expect(begun).toEqual(['a', 'b', 'c'])
  for (const { end } of pieces) end()
  expect((await results).map(({ status }) => status)).toEqual([
    'fulfilled',
    'rejected',
    'fulfilled',
    'fulfilled',
    'fulfilled',
  ])
  expect(begun).toEqual(['a', 'b', 'c', 'd', 'e'])

  const later = ['f', 'g', 'h'].map((name) => pieceOf(begun, name))
  const rest = Promise.all(later.map(({ work }) => turns.take(work)))
  await settle()
  expect(begun.slice(5)).toEqual(['f', 'g'])
  for (const { end } of later) end()
  expect(await rest).toEqual(['f', 'g', 'h'])
})
