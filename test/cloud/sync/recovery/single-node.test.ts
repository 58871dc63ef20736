import { expect, it } from 'vitest'
import { MINUTE, openTwin } from '../../harness.ts'

it('counts a turn of its sales mark while it runs, also as the only node', async () => {
  await using twin = await openTwin()
  const turns = () => twin.read(async ({ edge }) => (await edge.salesMarks.list()).map(({ turn }) => turn))
  expect(await turns()).toEqual([1])
  await twin.advance(MINUTE)
  expect(await turns()).toEqual([2])
})
