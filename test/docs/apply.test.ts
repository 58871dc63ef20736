// The file of the page about `tallygate apply`, applied to a cloud.
import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { administering, tallygate } from '../cli/outside.ts'
import { openTwin } from '../cloud/harness.ts'

it('the file of the page about applying a site can be applied, and again without changes', async () => {
  await using twin = await openTwin()
  const page = readFileSync(new URL('../../docs/how-to/apply-a-site.md', import.meta.url), 'utf8')
  const site = /```yaml\n([^]*?)```/.exec(page)![1]!
  const apply = () =>
    tallygate(
      ['apply', '-f', 'site.yaml'],
      administering(twin, (path) => (path === 'site.yaml' ? site : undefined)),
    )
  expect((await apply()).out).toMatch(/6 created, 1 changed, 0 unchanged\.\n$/)
  expect((await apply()).out).toBe('No changes: 0 created, 0 changed, 7 unchanged.\n')
})
