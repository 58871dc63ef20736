// The file of the page about `tallygate apply`, applied to a cloud.
import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { tallygate } from '../cli/outside.ts'
import { openTwin } from '../cloud/harness.ts'

it('the file of the page about applying a site can be applied, and again without changes', async () => {
  await using twin = await openTwin()
  const page = readFileSync(new URL('../../docs/how-to/apply-a-site.md', import.meta.url), 'utf8')
  const site = /```yaml\n([^]*?)```/.exec(page)![1]!
  const apply = () =>
    tallygate(['apply', '-f', 'site.yaml'], {
      now: () => twin.now,
      env: { TALLYGATE_URL: twin.cloud.address, TALLYGATE_ADMIN_KEY: twin.cloud.administrationKeyFile },
      readText: (path) => (path === 'site.yaml' ? site : readFileSync(path, 'utf8')),
    })
  expect((await apply()).out).toMatch(/6 created, 1 changed, 0 unchanged\.\n$/)
  expect((await apply()).out).toBe('No changes: 0 created, 0 changed, 7 unchanged.\n')
})
