import { globSync, readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { ERRORS, messageOf } from '../../src/protocol/errors.ts'

const root = new URL('../../', import.meta.url)

it('the catalogue has no code that nothing raises', () => {
  const files = globSync(['src/**/*.ts', 'bin/*.js'], { cwd: root, exclude: ['src/protocol/errors.ts'] })
  const words = files.flatMap((path) => readFileSync(new URL(path, root), 'utf8').match(/\b[A-Z][A-Z_]+\b/g) ?? [])
  const raised = new Set<string>(words)
  expect(Object.keys(ERRORS).filter((code) => !raised.has(code))).toEqual([])
})

it('names commands of systemd and sudo only after words that are right without them', () => {
  const files = globSync(['src/**/*.ts'], { cwd: root })
  const lines = files.flatMap((path) => readFileSync(new URL(path, root), 'utf8').split('\n'))
  const withoutAsides = lines.map((line) => line.replaceAll(/\(with (?:systemd|the package|sudo): [^)]*\)/g, ''))
  expect(withoutAsides.filter((line) => /\b(?:sudo|systemctl|timedatectl|resolvectl)\b/.test(line))).toEqual([])
})

it('names each address of a host name that refuses the connection', () => {
  const refused = ['::1', '127.0.0.1'].map((address) => new Error(`connect ECONNREFUSED ${address}:9`))
  expect(messageOf(new AggregateError(refused))).toBe('connect ECONNREFUSED ::1:9; connect ECONNREFUSED 127.0.0.1:9')
})
