// `npm run release -- prepare VERSION` sets the version, dates the changelog, generates pages, commits and tags. `npm run release -- build`
// makes what is published of the tagged commit: npm package, Debian packages, an SBOM and checksums. Nothing is pushed or uploaded.
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { orUsage } from './or-usage.ts'
import { outputOf } from './package/output-of.ts'
import { dated, newerVersion } from './release/changelog.ts'
import { sbomOf } from './release/sbom.ts'

const USAGE = `npm run release -- prepare VERSION
npm run release -- build [--out FOLDER] [--without-debian]

  prepare  set version, changelog and generated pages, commit and tag, on a clean main
  build    npm package, Debian packages, SBOM and SHA256SUMS of the tagged commit
`

const { values, version: newVersion } = orUsage(USAGE, () => {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      out: { type: 'string', default: '.tallygate/release' },
      'without-debian': { type: 'boolean', default: false },
    },
  })
  const [command, version, ...others] = positionals
  const isBuild = command === 'build' && version === undefined
  if (!isBuild && (command !== 'prepare' || version === undefined || others.length > 0))
    throw new Error('Give prepare VERSION, or build.')
  return { values, version }
})
const git = async (...args: string[]): Promise<string> => (await outputOf('git', args)).trim()

function fail(problem: string): never {
  console.error(problem)
  process.exit(1)
}

async function prepare(version: string): Promise<void> {
  const manifest = readFileSync('package.json', 'utf8')
  const { version: current } = JSON.parse(manifest) as { version: string }
  if (!newerVersion(version, current)) fail(`${version} is not a version above ${current}. Use MAJOR.MINOR.PATCH.`)
  if ((await git('status', '--porcelain')) !== '') fail('The working tree has changes. Commit or stash them first.')
  if ((await git('branch', '--show-current')) !== 'main') fail('Releases are made on main. Run: git switch main')
  const changelog = dated(readFileSync('CHANGELOG.md', 'utf8'), version, new Date().toISOString().slice(0, 10))
  if (changelog === null) fail('CHANGELOG.md has nothing under "## Unreleased". Describe what changes first.')
  writeFileSync('CHANGELOG.md', changelog)
  await outputOf('npm', ['version', version, '--no-git-tag-version', '--ignore-scripts'])
  const clients = ['sdk/node/package.json', 'sdk/python/pyproject.toml']
  for (const path of clients) {
    writeFileSync(path, readFileSync(path, 'utf8').replace(/^(\s*"?version"? ?[:=] )"[^"]*"/m, `$1"${version}"`))
  }
  // Manual pages name the version.
  await outputOf(process.execPath, ['scripts/docs.ts'])
  const changed = ['package.json', 'package-lock.json', 'CHANGELOG.md', 'docs', ...clients]
  await git('commit', '--quiet', '--message', `Release ${version}`, ...changed)
  await git('tag', '--annotate', `v${version}`, '--message', `Tallygate ${version}`)
  console.log(`Tagged v${version}. Next: npm run release -- build, then push main and the tag.`)
}

async function build(): Promise<void> {
  const { version } = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string }
  const tags = (await git('tag', '--points-at', 'HEAD')).split('\n')
  if (!tags.includes(`v${version}`)) fail(`HEAD is not tagged v${version}. Run: git checkout v${version}`)
  if ((await git('status', '--porcelain')) !== '') fail('The working tree has changes, so it is not what was tagged.')
  if (existsSync(values.out)) rmSync(values.out, { recursive: true })
  mkdirSync(values.out, { recursive: true })
  await outputOf('npm', ['pack', '--silent', '--pack-destination', values.out])
  if (!values['without-debian']) await outputOf(process.execPath, ['scripts/package.ts', '--out', values.out])
  const sbom = ['sbom', '--sbom-format', 'cyclonedx', '--package-lock-only']
  const whole = await outputOf('npm', sbom)
  const installed = await outputOf('npm', [...sbom, '--omit', 'dev'])
  const bundled = JSON.parse(readFileSync('dist/third-party.json', 'utf8')) as string[]
  writeFileSync(join(values.out, `tallygate-${version}.cdx.json`), sbomOf({ whole, installed, bundled }))
  const sums = readdirSync(values.out)
    .sort()
    .map(
      (file) =>
        `${createHash('sha256')
          .update(readFileSync(join(values.out, file)))
          .digest('hex')}  ${file}\n`,
    )
  writeFileSync(join(values.out, 'SHA256SUMS'), sums.join(''))
  console.log(sums.join('').trimEnd())
}

if (newVersion === undefined) await build()
else await prepare(newVersion)
