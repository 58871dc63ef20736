/** The file system of the Debian package around the program, and its control files. */
import { createHash } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  lstatSync,
  lutimesSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  writeFileSync,
} from 'node:fs'
import { basename, dirname, join, relative } from 'node:path'
import { gzipSync } from 'node:zlib'
import type { Architecture } from './runtime.ts'

export type Shell = 'bash' | 'zsh' | 'fish'

export interface DebianOptions {
  readonly root: string
  /** Root of the package; the program stands in usr/lib/tallygate of it. */
  readonly tree: string
  readonly architecture: Architecture
  /** As Debian writes it. */
  readonly version: string
  readonly maintainer: string
  /** POSIX seconds that every file gets. */
  readonly epoch: number
  /** Completion scripts by shell. */
  readonly completions: ReadonlyMap<Shell, string>
}

const UNITS = '/usr/lib/systemd/system'
const DOC = '/usr/share/doc/tallygate'
const CONFIGURATION = ['/etc/tallygate/agent.toml', '/etc/tallygate/cloud.toml']
const COMPLETIONS: Readonly<Record<Shell, string>> = {
  bash: '/usr/share/bash-completion/completions/tallygate',
  zsh: '/usr/share/zsh/vendor-completions/_tallygate',
  fish: '/usr/share/fish/vendor_completions.d/tallygate.fish',
}
const SCRIPTS = ['preinst', 'postinst', 'prerm', 'postrm']

/** A version of npm as Debian compares it: what is before a release sorts before it. */
export function debianVersion(version: string): string {
  return version.replace('-', '~')
}

export function layDebian(options: DebianOptions): void {
  const { root, tree, epoch } = options
  const from = (path: string): Buffer => readFileSync(join(root, path))
  const put = (path: string, content: Buffer | string): void => {
    mkdirSync(dirname(join(tree, path)), { recursive: true })
    writeFileSync(join(tree, path), content)
  }
  put('/usr/bin/tallygate', from('packaging/debian/wrapper.sh'))
  for (const unit of ['tallygate-agent.service', 'tallygate-agent.socket', 'tallygate-cloud.service']) {
    put(`${UNITS}/${unit}`, from(`systemd/${unit}`))
  }
  put('/usr/lib/sysusers.d/tallygate.conf', from('systemd/tallygate.sysusers'))
  for (const path of CONFIGURATION) put(path, from(`packaging/debian/${path.split('/').at(-1) ?? ''}`))
  put(`${DOC}/copyright`, from('packaging/debian/copyright'))
  put(`${DOC}/changelog.gz`, zipped(Buffer.from(debianChangelog(options))))
  put(`${DOC}/CHANGELOG.md.gz`, zipped(from('CHANGELOG.md')))
  for (const page of [
    'how-to/install',
    'how-to/operate-devices',
    'how-to/operate-the-cloud',
    ...['configuration', 'errors', 'local-api'].map((name) => `reference/${name}`),
  ]) {
    put(`${DOC}/${basename(page)}.md.gz`, zipped(from(`docs/${page}.md`)))
  }
  for (const name of readdirSync(join(root, 'systemd/examples')))
    put(`${DOC}/examples/${name}`, from(`systemd/examples/${name}`))
  for (const name of namesIn(join(root, 'docs/reference/man')).filter((each) => /\.\d$/.test(each))) {
    put(`/usr/share/man/man${name.at(-1) ?? ''}/${name}.gz`, zipped(from(`docs/reference/man/${name}`)))
  }
  for (const [shell, script] of options.completions) put(COMPLETIONS[shell], script)
  put('/usr/share/lintian/overrides/tallygate', from('packaging/debian/lintian-overrides'))

  const files = filesIn(tree)
  const schema = (path: string): number => readdirSync(join(root, path)).filter((name) => name.endsWith('.sql')).length
  const facts: Readonly<Record<string, string>> = {
    VERSION: options.version,
    ARCHITECTURE: options.architecture,
    MAINTAINER: options.maintainer,
    INSTALLED_SIZE: String(Math.ceil(files.reduce((sum, path) => sum + lstatSync(path).size, 0) / 1024)),
    LEDGER_SCHEMA: String(schema('src/agent/platform/sqlite/migrations')),
    TWIN_SCHEMA: String(schema('src/cloud/storage/sqlite/migrations')),
  }
  for (const name of ['control', ...SCRIPTS]) {
    const text = from(`packaging/debian/${name}`).toString()
    put(
      `/DEBIAN/${name}`,
      text.replaceAll(/@([A-Z_]+)@/g, (_match, key: string) => required(facts, key)),
    )
  }
  put('/DEBIAN/conffiles', `${CONFIGURATION.join('\n')}\n`)
  put(
    '/DEBIAN/md5sums',
    files
      .filter((path) => !CONFIGURATION.includes(`/${relative(tree, path)}`))
      .map((path) => sumLine(tree, path))
      .join(''),
  )
  settle(
    tree,
    epoch,
    new Set([
      ...SCRIPTS.map((name) => join(tree, 'DEBIAN', name)),
      join(tree, 'usr/bin/tallygate'),
      join(tree, 'usr/lib/tallygate/runtime/node'),
    ]),
  )
}

function namesIn(folder: string): readonly string[] {
  return existsSync(folder) ? readdirSync(folder) : []
}

function required(facts: Readonly<Record<string, string>>, key: string): string {
  const value = facts[key]
  if (value === undefined) throw new Error(`the package knows no @${key}@`)
  return value
}

/** One entry, in the form that Debian's tools read. */
function debianChangelog({ version, maintainer, epoch }: DebianOptions): string {
  const date = new Date(epoch * 1000).toUTCString().replace('GMT', '+0000')
  return `tallygate (${version}) unstable; urgency=medium\n\n  * What changes for users is in CHANGELOG.md.gz.\n\n -- ${maintainer}  ${date}\n`
}

/** Without the time and the name that gzip would put into it. */
function zipped(content: Buffer): Buffer {
  return gzipSync(content, { level: 9 })
}

function sumLine(tree: string, path: string): string {
  return `${createHash('md5').update(readFileSync(path)).digest('hex')}  ${relative(tree, path)}\n`
}

/** In one order on every machine. */
function filesIn(folder: string): readonly string[] {
  return readdirSync(folder, { withFileTypes: true })
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((entry) => (entry.isDirectory() ? filesIn(join(folder, entry.name)) : [join(folder, entry.name)]))
}

/** Rights and times that depend on nothing but what is packed. */
function settle(path: string, epoch: number, executable: ReadonlySet<string>): void {
  const isFolder = lstatSync(path).isDirectory()
  if (isFolder) for (const name of readdirSync(path)) settle(join(path, name), epoch, executable)
  chmodSync(path, isFolder || executable.has(path) ? 0o755 : 0o644)
  lutimesSync(path, epoch, epoch)
}
