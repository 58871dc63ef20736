// `npm run package`: a Debian package for each architecture, with the runtime and all dependencies inside, made by dpkg-deb. The same
// commit gives the same bytes: files have the time of the commit (SOURCE_DATE_EPOCH says otherwise).
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { orUsage } from './or-usage.ts'
import { layApplication } from './package/application.ts'
import { type Shell, debianVersion, layDebian } from './package/debian-tree.ts'
import { outputOf } from './package/output-of.ts'
import { ARCHITECTURES, type Architecture } from './package/runtime.ts'

const root = process.cwd()
const USAGE = `npm run package -- [--arch ${ARCHITECTURES.join(',')}] [--out FOLDER] [--version VERSION] [--quick]
  --quick  hardly compressed, for tests
Environment: SOURCE_DATE_EPOCH, TALLYGATE_PACKAGE_MAINTAINER ("Name <address>")
`

const { values, architectures } = orUsage(USAGE, () => {
  const { values } = parseArgs({
    options: {
      arch: { type: 'string', default: ARCHITECTURES.join(',') },
      out: { type: 'string', default: '.tallygate/packages' },
      version: { type: 'string' },
      quick: { type: 'boolean', default: false },
    },
  })
  return { values, architectures: values.arch.split(',').map(known) }
})

const version = values.version ?? (JSON.parse(readFileSync('package.json', 'utf8')) as { version: string }).version
const epoch = Number(process.env['SOURCE_DATE_EPOCH'] ?? (await outputOf('git', ['log', '-1', '--format=%ct'])).trim())
const maintainer = process.env['TALLYGATE_PACKAGE_MAINTAINER'] ?? 'Tallygate maintainers <tallygate@localhost>'
const compression = values.quick ? ['-Zgzip', '-z1'] : ['-Zxz', '-z6']

await outputOf(process.execPath, ['scripts/build.ts'])
const completions = new Map<Shell, string>()
if ((await outputOf(process.execPath, ['bin/tallygate.js', '--help'])).includes('completion')) {
  for (const shell of ['bash', 'zsh', 'fish'] as const) {
    completions.set(shell, await outputOf(process.execPath, ['bin/tallygate.js', 'completion', shell]))
  }
}
mkdirSync(values.out, { recursive: true })
for (const architecture of architectures) {
  const work = mkdtempSync(join(tmpdir(), 'tallygate-package-'))
  try {
    const tree = join(work, 'tree')
    const target = join(tree, 'usr/lib/tallygate')
    await layApplication({ root, target, architecture, version, cache: '.tallygate/runtimes' })
    const shown = debianVersion(version)
    layDebian({ root, tree, architecture, version: shown, maintainer, epoch, completions })
    const deb = join(values.out, `tallygate_${shown}_${architecture}.deb`)
    await outputOf('dpkg-deb', ['--root-owner-group', ...compression, '--build', tree, deb], {
      env: { SOURCE_DATE_EPOCH: String(epoch) },
    })
    console.log(`${deb}  ${(statSync(deb).size / 1e6).toFixed(1)} MB`)
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}

function known(name: string): Architecture {
  const found = ARCHITECTURES.find((each) => each === name)
  if (found === undefined) throw new Error(`--arch ${name}: known are ${ARCHITECTURES.join(', ')}`)
  return found
}
