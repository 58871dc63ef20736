/** The corpus over HTTP: the decision of the engine is in the response and in the pools. */
import { expect, test } from 'vitest'
import { openTwin } from '../cloud/harness.ts'
import { loadCorpus } from './load-corpus.ts'
import { replay, wantedOnTheWire } from './twin-replay.ts'

const cases = loadCorpus().filter(({ engineOnly }) => engineOnly === undefined)

test.concurrent.each(cases.map((each) => [each.file, each] as const))('the twin answers %s', async (_file, each) => {
  await using twin = await openTwin()
  expect(await replay(twin, each)).toEqual(wantedOnTheWire(each))
})
