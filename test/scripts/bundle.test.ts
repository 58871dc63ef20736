// The bundles, built once, without the rest of the package.
import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type BundledPackage, bundle } from '../../scripts/build/bundle.ts'
import { noticesOf } from '../../scripts/build/notices.ts'

const repository = join(import.meta.dirname, '..', '..')

describe('the bundles', () => {
  let folder: string
  let packages: readonly BundledPackage[]

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'tallygate-bundle-'))
    packages = await bundle(repository, join(folder, 'dist'))
    for (const path of ['bin', 'package.json']) cpSync(join(repository, path), join(folder, path), { recursive: true })
    for (const name of ['better-sqlite3', 'koffi', '@koromix'])
      cpSync(join(repository, 'node_modules', name), join(folder, 'node_modules', name), { recursive: true })
  })
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  const files = (): readonly string[] =>
    readdirSync(join(folder, 'dist'), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.js'))
  const textOf = (name: string): string => readFileSync(join(folder, 'dist', name), 'utf8')

  it('run every command with native packages alone', () => {
    const run = (...args: string[]): string =>
      execFileSync(process.execPath, [join(folder, 'bin/tallygate.js'), ...args], { encoding: 'utf8' })
    const { version } = JSON.parse(readFileSync(join(repository, 'package.json'), 'utf8')) as { version: string }
    expect(run('--version')).toBe(`${version}\n`)
    expect(run('agent', '--help')).toContain('--socket-path')
    // Loads every command.
    expect(run('completion', 'bash')).toContain('tallygate')
  })

  it('import nothing but each other and native packages, and keep every file at one byte for each character', () => {
    for (const name of files()) {
      const imported = [...textOf(name).matchAll(/^import .*?"([^".][^"]*)";$/gm)].map((match) => match[1])
      expect(imported.filter((each) => each !== 'better-sqlite3' && each !== 'koffi')).toEqual([])
      expect(/[\u0100-\uffff]/.exec(textOf(name))).toBeNull()
    }
  })

  it('have the script of the API reference beside them, and not in them', () => {
    const script = readFileSync(join(folder, 'dist/cloud/http/openapi/scalar.js.gz'))
    expect(gunzipSync(script).toString()).toContain('createApiReference')
    expect(packages.map(({ id }) => id).join()).toContain('@scalar/fastify-api-reference@')
    for (const name of files()) expect(textOf(name)).not.toContain('createApiReference')
  })

  it('name the file and line of the source in a stack trace', () => {
    const command = [join(folder, 'bin/tallygate.js'), 'token', '--debug']
    const { stderr } = spawnSync(process.execPath, command, { encoding: 'utf8' })
    expect(stderr).toContain('tallygate: USAGE')
    expect(stderr).toMatch(/src\/cli\/commands\/token\.ts:\d+:\d+/)
  })

  it('come with the license of each package in them', () => {
    const names = packages.map(({ id }) => id.replace(/@[^@]+$/, ''))
    expect(names).toContain('zod')
    expect(names).not.toContain('better-sqlite3')
    const notices = noticesOf(packages)
    for (const { id } of packages) expect(notices).toContain(`${id} (`)
    expect(notices).toContain('Permission is hereby granted')
  })
})
