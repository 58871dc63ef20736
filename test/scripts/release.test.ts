import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { dated, newerVersion } from '../../scripts/release/changelog.ts'

const repository = join(import.meta.dirname, '..', '..')

describe('newerVersion', () => {
  it.each([
    ['0.2.0', '0.1.9', true],
    ['0.1.10', '0.1.9', true],
    ['1.0.0', '0.9.9', true],
    ['0.1.9', '0.1.9', false],
    ['0.0.9', '0.1.0', false],
    ['0.2', '0.1.0', false],
    ['v0.2.0', '0.1.0', false],
  ])('%s after %s: %s', (next, current, newer) => expect(newerVersion(next, current)).toBe(newer))
})

describe('dated', () => {
  it('moves the unreleased entries to a section of the version', () => {
    expect(dated('# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.1.0 (2026-01-01)\n', '0.2.0', '2026-02-01')).toBe(
      '# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-02-01)\n\n- New.\n\n## 0.1.0 (2026-01-01)\n',
    )
  })

  it('refuses a changelog without unreleased entries', () => {
    expect(dated('# Changelog\n\n## Unreleased\n\n## 0.1.0 (2026-01-01)\n\n- Old.\n', '0.2.0', '2026-02-01')).toBeNull()
    expect(dated('# Changelog\n', '0.2.0', '2026-02-01')).toBeNull()
  })
})

describe('npm run release', () => {
  let root: string
  const run = (command: string, ...args: string[]): string =>
    execFileSync(command, args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
  const release = (...args: string[]): string => run(process.execPath, 'scripts/release.ts', ...args)

  beforeAll(() => {
    root = mkdtempSync(join(tmpdir(), 'tallygate-release-'))
    const paths = [
      'package.json',
      'package-lock.json',
      'bin',
      'conformance',
      'docs',
      'scripts',
      'sdk',
      'src',
      'LICENSE',
    ]
    for (const path of [...paths, '.gitignore', '.prettierrc.json', 'tsconfig.json'])
      cpSync(join(repository, path), join(root, path), { recursive: true })
    symlinkSync(join(repository, 'node_modules'), join(root, 'node_modules'))
    writeFileSync(join(root, 'CHANGELOG.md'), '# Changelog\n\n## Unreleased\n\n- New.\n')
    writeFileSync(join(root, '.git-exclude'), 'node_modules\n.git-exclude\n')
    run('git', 'init', '--quiet', '--initial-branch', 'main')
    for (const [key, value] of [
      ['user.name', 'Release'],
      ['user.email', 'release@example.com'],
      ['core.excludesFile', join(root, '.git-exclude')],
    ] as const)
      run('git', 'config', key, value)
    run('git', 'add', '--all')
    run('git', 'commit', '--quiet', '--message', 'Start')
  })
  afterAll(() => rmSync(root, { recursive: true, force: true }))

  it('changes nothing when the tree is not clean, the version is not newer, or nothing is tagged', () => {
    expect(() => release('prepare', '0.0.1')).toThrow('not a version above')
    writeFileSync(join(root, 'LICENSE'), 'changed')
    expect(() => release('prepare', '7.1.0')).toThrow('The working tree has changes')
    expect(() => release('build')).toThrow('HEAD is not tagged')
    run('git', 'restore', 'LICENSE')
    expect(run('git', 'status', '--porcelain')).toBe('')
    expect(run('git', 'tag')).toBe('')
  })

  describe('a version that is prepared', () => {
    beforeAll(() => void release('prepare', '7.1.0'))

    it('has its files, commit and tag', () => {
      expect(run('git', 'log', '-1', '--format=%s %D')).toContain('Release 7.1.0')
      expect(run('git', 'tag', '--points-at', 'HEAD').trim()).toBe('v7.1.0')
      expect(run('git', 'status', '--porcelain')).toBe('')
      for (const file of ['package.json', 'package-lock.json', 'sdk/node/package.json'])
        expect(JSON.parse(readFileSync(join(root, file), 'utf8'))).toMatchObject({ version: '7.1.0' })
      expect(readFileSync(join(root, 'sdk/python/pyproject.toml'), 'utf8')).toContain('\nversion = "7.1.0"\n')
      expect(readFileSync(join(root, 'CHANGELOG.md'), 'utf8')).toMatch(
        /## Unreleased\n\n## 7\.1\.0 \(\d{4}-\d\d-\d\d\)/,
      )
      expect(readFileSync(join(root, 'docs/reference/man/tallygate.1'), 'utf8')).toContain('"tallygate 7.1.0"')
    })

    it('is built as the npm package, an SBOM of what it installs, and checksums of both', () => {
      release('build', '--without-debian')
      const out = join(root, '.tallygate', 'release')
      expect(readdirSync(out).sort()).toEqual(['SHA256SUMS', 'tallygate-7.1.0.cdx.json', 'tallygate-7.1.0.tgz'])
      const sbom = JSON.parse(readFileSync(join(out, 'tallygate-7.1.0.cdx.json'), 'utf8')) as {
        components: { name: string }[]
      }
      const names = sbom.components.map(({ name }) => name)
      expect(names).toContain('better-sqlite3')
      expect(names).not.toContain('vitest')
      for (const line of readFileSync(join(out, 'SHA256SUMS'), 'utf8').trimEnd().split('\n')) {
        const [sum, file = ''] = line.split('  ')
        expect(sum).toBe(
          createHash('sha256')
            .update(readFileSync(join(out, file)))
            .digest('hex'),
        )
      }
    }, 180_000)
  })
})
