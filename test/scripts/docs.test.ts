import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { generatedPages } from '../../scripts/docs.ts'
import { agentOptions } from '../../src/agent/settings.ts'
import { cloudOptions } from '../../src/cloud/settings.ts'
import { ERRORS } from '../../src/protocol/errors.ts'
import { namedOptions } from '../../src/settings/option.ts'

const pages = await generatedPages()
const written = (path: string) => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')

test.each([...pages.keys()])('%s is what its source says: otherwise run `npm run docs`', (path) => {
  expect(written(path)).toBe(pages.get(path))
})

test('the pages name every setting and every error code', () => {
  const settings = [agentOptions, cloudOptions].flatMap((table) => namedOptions(table).map(({ env }) => env))
  for (const name of settings) expect(pages.get('docs/configuration.md')).toContain(`\`${name}\``)
  for (const code of Object.keys(ERRORS)) expect(pages.get('docs/errors.md')).toContain(`| \`${code}\``)
})
