// The packages of the clients: versions, and that they need no other package.
import { globSync, readFileSync } from 'node:fs'
import { expect, it } from 'vitest'

const read = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')
const manifest = (path: string) => JSON.parse(read(path)) as Readonly<Record<string, unknown>>

it('have the version of the agent', () => {
  const { version } = manifest('package.json')
  expect(manifest('sdk/node/package.json')['version']).toBe(version)
  expect(/^version = "(.*)"$/m.exec(read('sdk/python/pyproject.toml'))?.[1]).toBe(version)
})

it('need no other package', () => {
  const node = manifest('sdk/node/package.json')
  expect(Object.keys(node).filter((key) => /dependencies/i.test(key))).toEqual([])
  expect(read('sdk/python/pyproject.toml')).toContain('dependencies = []')
  expect(read('sdk/go/go.mod')).not.toContain('require')
  const imported = globSync('sdk/go/*.go', { cwd: new URL('../../', import.meta.url) }).flatMap((path) =>
    [...read(path).matchAll(/^\t"([^"]+)"$/gm)].map(([, name = '']) => name),
  )
  expect(imported.length).toBeGreaterThan(5)
  expect(imported.filter((name) => name.includes('.'))).toEqual([])
})
