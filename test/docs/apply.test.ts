// The file of the page about `tallygate apply`, applied to a cloud.
import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { administering, tallygate } from '../cli/outside.ts'
import { openTwin } from '../cloud/harness.ts'

function site(): string {
  const page = readFileSync(new URL('../../docs/how-to/apply-a-site.md', import.meta.url), 'utf8')
  return /```yaml\n([^]*?)```/.exec(page)![1]!
}

it('the file of the page about applying a site can be applied, and again without changes', async () => {
  await using twin = await openTwin()
  const apply = () =>
    tallygate(
      ['apply', '-f', 'site.yaml'],
      administering(twin, (path) => (path === 'site.yaml' ? site() : undefined)),
    )
  expect((await apply()).out).toMatch(/6 created, 1 changed, 0 unchanged\.\n$/)
  expect((await apply()).out).toBe('No changes: 0 created, 0 changed, 7 unchanged.\n')
})

it('the file of the page changes the site of the README', async () => {
  await using twin = await openTwin()
  const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8')
  const commands = [...readme.matchAll(/^tallygate ((?:instances|rate-tables|line-items) set .*)$/gm)]
  expect(commands).toHaveLength(3)
  const world = administering(twin, (path) => (path === 'site.yaml' ? site() : undefined))
  for (const [, words] of commands) expect(await tallygate(words!.split(' '), world)).toMatchObject({ code: 0 })
  const { code, out } = await tallygate(['apply', '-f', 'site.yaml'], world)
  expect([code, out]).toEqual([0, expect.stringMatching(/4 created, 2 changed, 1 unchanged\.\n$/)])
})
