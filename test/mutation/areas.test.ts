// Names of files in the areas of mutation testing, which no other test reads.
import { globSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { AREAS } from '../../mutation/areas.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

test.each(AREAS)('the area $name names only files that exist', ({ mutate, tests }) => {
  const missing = [...mutate, ...tests].filter((pattern) => globSync(pattern, { cwd: root }).length === 0)
  expect(missing).toEqual([])
})
