/** The corpus over HTTP: what the engine decides is what an application is told and what the pools hold afterwards. */
import { expect, test } from 'vitest'
import { openTwin } from '../cloud/harness.ts'
import { loadCorpus } from './load-corpus.ts'
import { replay, wantedOnTheWire } from './twin-replay.ts'

const cases = loadCorpus().filter(({ engineOnly }) => engineOnly === undefined)

test.concurrent.each(cases.map((each) => [each.file, each] as const))('the twin answers %s', async (_file, each) => {
  await using twin = await openTwin()
  expect(await replay(twin, each)).toEqual(wantedOnTheWire(each))
})
