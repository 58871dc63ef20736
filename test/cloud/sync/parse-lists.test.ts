import { expect, it } from 'vitest'
import { z } from 'zod'
import { parseLists } from '../../../src/cloud/sync/parse-lists.ts'
import { microText } from '../../../src/protocol/wire.ts'
import { firstProblem } from '../../../src/protocol/errors.ts'

const schema = z.strictObject({ name: z.string(), amounts: z.array(z.strictObject({ amount: microText })).max(1_000) })
const amounts = (count: number) => Array.from({ length: count }, (_, index) => ({ amount: String(index) }))
const long = { lists: { amounts: 1_000 }, root: 'it', giveWay: async () => undefined }

it.each([
  { name: 'x', amounts: amounts(0) },
  { name: 'x', amounts: amounts(1_000) },
  { name: 'x', amounts: [...amounts(70), { amount: '-1' }] },
  { name: 'x', amounts: [...amounts(70), { amount: '1', more: 1 }] },
  { name: 1, amounts: amounts(3) },
  { name: 'x', amounts: 'none' },
  { name: 'x' },
  { name: 'x', amounts: [], more: 1 },
  null,
  undefined,
  'text',
  [],
])('says the same as the schema: %j', async (value) => {
  const whole = schema.safeParse(value)
  const parsed = await parseLists(schema, value, long)
  if (whole.success) expect(parsed).toEqual({ parsed: true, data: whole.data })
  else expect(parsed).toEqual({ parsed: false, problem: firstProblem(whole.error, 'it') })
})

it('refuses a list that is too long before it looks at anything else', async () => {
  let ways = 0
  const giveWay = async (): Promise<void> => void (ways += 1)
  const value = { name: 1, amounts: Array.from({ length: 1_001 }, () => 'no amount') }
  const problem = 'it.amounts: has more than 1000 elements'
  expect(await parseLists(schema, value, { ...long, giveWay })).toEqual({ parsed: false, problem })
  expect(ways).toBe(0)
})

it('gives way while it goes through a list', async () => {
  let ways = 0
  await parseLists(schema, { name: 'x', amounts: amounts(1_000) }, { ...long, giveWay: async () => void (ways += 1) })
  expect(ways).toBe(20)
})
