// Commands of the documents change the cloud that they name, whichever one the user has chosen before.
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'

const ROOT = join(import.meta.dirname, '../..')
const pages = globSync(['README.md', 'deploy/*.md', 'docs/**/*.md'], { cwd: ROOT })
const blocks = pages
  .flatMap((page) => readFileSync(join(ROOT, page), 'utf8').match(/^```sh\n.*?^```$/gms) ?? [])
  .filter((block) => block.includes('tallygate context add'))

it('blocks that add a context choose one for the commands that follow', () => {
  expect(blocks.length).toBeGreaterThan(1)
  for (const block of blocks) expect(block).toMatch(/^tallygate context add [^]*^tallygate context use \w+$/m)
})
