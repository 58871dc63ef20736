import { existsSync, globSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { generatedPages } from '../../scripts/docs.ts'
import { agentOptions } from '../../src/agent/settings.ts'
import { cloudOptions } from '../../src/cloud/settings.ts'
import { ERRORS } from '../../src/protocol/errors.ts'
import { REFUSAL_REASONS, type RefusalReason } from '../../src/core/rules/refusal-reasons.ts'
import { ITEM_STATUS } from '../../src/protocol/service/status.ts'
import { namedOptions } from '../../src/settings/option.ts'

const pages = await generatedPages()
const root = new URL('../../', import.meta.url)
const written = (path: string) => readFileSync(new URL(path, root), 'utf8')

test.each([...pages.keys()])('%s is what its source says: otherwise run `npm run docs`', (path) => {
  expect(written(path)).toBe(pages.get(path))
})

test('the pages name every setting and every error code', () => {
  const settings = [agentOptions, cloudOptions].flatMap((table) => namedOptions(table).map(({ env }) => env))
  for (const name of settings) expect(pages.get('docs/reference/configuration.md')).toContain(`\`${name}\``)
  for (const code of Object.keys(ERRORS)) expect(pages.get('docs/reference/errors.md')).toContain(`| \`${code}\``)
})

test('the page on errors lists every reason of a refusal with its codes', () => {
  const lines = (pages.get('docs/reference/errors.md') ?? '').replaceAll(/ +/g, ' ').split('\n')
  for (const reason of Object.keys(REFUSAL_REASONS) as RefusalReason[]) {
    const row = `| \`${reason}\` | \`${ITEM_STATUS[reason]['v1.0']}\` | \`${ITEM_STATUS[reason]['v1.1']}\` |`
    expect(lines.filter((line) => line.startsWith(row))).toHaveLength(1)
  }
})

test('each row of the errors has a cell for each column, and shows all of its words', () => {
  const lines = (pages.get('docs/reference/errors.md') ?? '').split('\n')
  const from = lines.findIndex((line) => line.startsWith('| Code'))
  const rows = lines.slice(from, lines.indexOf('', from))
  expect(rows.filter((row) => row.split(/(?<!\\)\|/).length !== 8)).toEqual([])
  // A browser takes <file> for an element and shows nothing, unless it is code.
  expect(rows.filter((row) => /<[a-z]/.test(row.replaceAll(/`[^`]*`/g, '')))).toEqual([])
})

/** As GitHub names a heading in a link. */
const anchorOf = (heading: string): string =>
  heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .trim()
    .replaceAll(' ', '-')

const anchorsIn = (text: string): ReadonlySet<string> =>
  new Set([...text.matchAll(/^#+ +(.+)$/gm)].map(([, heading = '']) => anchorOf(heading)))

test('every file and every heading that a page links to is there', () => {
  const pagesOnDisk = globSync(['*.md', 'docs/**/*.md'], { cwd: root })
  const links = pagesOnDisk.flatMap((page) =>
    [...written(page).matchAll(/\]\(([^)#:]*)(?:#([^)]*))?\)/g)].map(([, path = '', anchor]) => ({
      page,
      path,
      anchor,
    })),
  )
  const broken = links.filter(({ page, path, anchor }) => {
    const target = path === '' ? new URL(page, root) : new URL(path, new URL(page, root))
    if (!existsSync(target)) return true
    return anchor !== undefined && !anchorsIn(readFileSync(target, 'utf8')).has(anchor)
  })
  expect(links.length).toBeGreaterThan(50)
  expect(broken).toEqual([])
})

test('every file and every name of the code that a written page refers to is there', () => {
  const files = globSync(['src/**/*.{ts,sql}', 'tsconfig.json'], { cwd: root })
  const words = new Set(files.flatMap((path) => written(path).match(/\w+/g) ?? []))
  const missing = globSync(['*.md', 'deploy/*.md', 'docs/{,decisions/,explanation/,how-to/,tutorials/}*.md'], {
    cwd: root,
  }).flatMap((page) =>
    [...written(page).matchAll(/`([^`\n]+)`/g)]
      .map(([, said = '']) => said)
      .filter((said) =>
        /^(src|test|docs|scripts|sdk|conformance|mutation|packaging|deploy)\/[\w./*-]+$/.test(said)
          ? globSync(said, { cwd: root }).length === 0
          : /^[a-z]+[A-Z]\w+$/.test(said) && !words.has(said),
      )
      .map((said) => `${page}: ${said}`),
  )
  expect(missing).toEqual([])
})
