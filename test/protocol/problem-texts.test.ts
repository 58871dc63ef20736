import { expect, it } from 'vitest'
import { z } from 'zod'
import { firstProblem } from '../../src/protocol/errors.ts'
import { uuid } from '../../src/protocol/wire.ts'

it.each<[schema: z.ZodType, given: unknown, problem: string]>([
  [z.strictObject({ a: z.string() }), {}, 'body.a: is missing'],
  [z.string(), 1, 'body: must be text'],
  [z.number(), Number.NaN, 'body: must be a number'],
  [z.int(), 1.5, 'body: must be a whole number'],
  [z.array(z.string()), 'a', 'body: must be a list'],
  [z.strictObject({}), [], 'body: must be an object'],
  [z.string().min(1), '', 'body: must not be empty'],
  [z.string().max(1), 'ab', 'body: must have at most 1 character'],
  [z.array(z.int()).min(2), [1], 'body: must have at least 2 elements'],
  [z.string().length(3), 'ab', 'body: must have exactly 3 characters'],
  [z.number().min(0), -1, 'body: must be at least 0'],
  [z.number().gt(0), 0, 'body: must be more than 0'],
  [z.number().max(5), 6, 'body: must be at most 5'],
  [uuid, 'x', 'body: must be a UUID'],
  [z.url(), 'x', 'body: must be a URL'],
  [z.string().regex(/^a$/), 'b', 'body: must match /^a$/'],
  [z.string().regex(/^a$/, 'must be a'), 'b', 'body: must be a'],
  [z.enum(['A', 'B']), 'C', 'body: must be one of A, B'],
  [z.literal('A'), 'C', 'body: must be A'],
  [z.strictObject({}), { extra: 1 }, 'body: must not have extra'],
  [
    z.strictObject({}),
    Object.fromEntries(Array.from({ length: 20_000 }, (_, n) => [`k${n}`, 1])),
    'body: must not have k0, k1, k2, k3, k4, k5, k6, k7, k8, k9 and 19990 more',
  ],
])('says in words what is wrong: %#', (schema, given, problem) => {
  const parsed = schema.safeParse(given)
  expect(parsed.success ? null : firstProblem(parsed.error)).toBe(problem)
})
