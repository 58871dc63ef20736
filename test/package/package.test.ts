// What the Debian package is made of, tried on a small stand-in for the program; the whole one takes a minute to build.
import { execFileSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { debianVersion, layDebian } from '../../scripts/package/debian-tree.ts'
import { prune } from '../../scripts/package/prune.ts'
import runtime from '../../scripts/package/runtime.json' with { type: 'json' }
import { agentOptions } from '../../src/agent/settings.ts'
import { cloudOptions } from '../../src/cloud/settings.ts'
import { examine } from '../../src/cli/doctor/checks.ts'
import { type Sources, loadSettings } from '../../src/settings/load.ts'
import { healthy } from '../cli/doctor-observations.ts'

const root = new URL('../../', import.meta.url).pathname
const base = healthy()
const noAgent = { agent: { code: 'AGENT_UNREACHABLE', message: 'connection refused.' }, agents: [] }
const EPOCH = 1_700_000_000

function directory(): string {
  const made = mkdtempSync(join(tmpdir(), 'tallygate-package-'))
  onTestFinished(() => rmSync(made, { recursive: true, force: true }))
  return made
}

function put(folder: string, ...paths: string[]): void {
  for (const path of paths) {
    mkdirSync(dirname(join(folder, path)), { recursive: true })
    writeFileSync(join(folder, path), path)
  }
}

/** Runs a script of the package, whose commands in `place` come before those of the machine. */
function runScript(place: string, text: string, ...args: string[]): void {
  const env = { ...process.env, PATH: `${place}:${process.env['PATH'] ?? ''}` }
  execFileSync('sh', ['-c', text, ...args], { env })
}

function putCommand(place: string, name: string, script: string): void {
  writeFileSync(join(place, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 })
}

function deb(file: string, architecture: 'amd64' | 'arm64' = 'arm64'): void {
  const tree = directory()
  put(tree, 'usr/lib/tallygate/runtime/node', 'usr/lib/tallygate/bin/tallygate.js')
  const completions = new Map([['bash', 'complete -W help tallygate\n'] as const])
  const maintainer = 'Somebody <somebody@localhost>'
  layDebian({ root, tree, architecture, version: '1.2.3', maintainer, epoch: EPOCH, completions })
  const env = { ...process.env, SOURCE_DATE_EPOCH: String(EPOCH) }
  execFileSync('dpkg-deb', ['--root-owner-group', '-Zgzip', '-z1', '--build', tree, file], { env })
}

const told = (...args: string[]): string => execFileSync('dpkg-deb', args, { encoding: 'utf8' })

describe('the Debian package', () => {
  it('has what it promises, for root alone to change', () => {
    const file = join(directory(), 'p.deb')
    deb(file)
    expect(told('-f', file, 'Package', 'Version', 'Architecture')).toBe(
      'Package: tallygate\nVersion: 1.2.3\nArchitecture: arm64\n',
    )
    const listed = told('-c', file).trimEnd().split('\n')
    const found = new Map(listed.map((line) => [line.split(/\s+/)[5]!, line]))
    expect(listed.filter((line) => !/^[d-]rw[x-]r-[x-]r-[x-] root\/root/.test(line))).toEqual([])
    for (const path of ['./usr/bin/tallygate', './usr/lib/tallygate/runtime/node'])
      expect(found.get(path)).toMatch(/^-rwxr-xr-x/)
    for (const path of [
      './etc/tallygate/agent.toml',
      './usr/lib/systemd/system/tallygate-agent.socket',
      './usr/lib/sysusers.d/tallygate.conf',
      './usr/share/bash-completion/completions/tallygate',
      './usr/share/doc/tallygate/install.md.gz',
      './usr/share/doc/tallygate/changelog.gz',
    ]) {
      expect(found.get(path)).toMatch(/^-rw-r--r--/)
    }
  })

  it('knows in its scripts which databases it can read', () => {
    const file = join(directory(), 'p.deb')
    const control = directory()
    deb(file)
    told('-e', file, control)
    const schemas = readdirSync(join(root, 'src/agent/platform/sqlite/migrations')).length
    const preinst = readFileSync(join(control, 'preinst'), 'utf8')
    expect(preinst).toContain(`journal.db ${schemas} `)
    for (const name of ['preinst', 'postinst', 'prerm', 'postrm']) {
      expect(readFileSync(join(control, name), 'utf8')).not.toMatch(/@[A-Z_]+@/)
      execFileSync('sh', ['-n', join(control, name)])
    }
    expect(readFileSync(join(control, 'conffiles'), 'utf8')).toBe(
      '/etc/tallygate/agent.toml\n/etc/tallygate/cloud.toml\n',
    )
  })

  it.each([
    [3, 0, true],
    [0, 1, true],
    [0, 0, false],
  ])(
    'notes at its removal, after the stop, whether usage is undelivered: %d entries, %d open reservations',
    (backlog, open_reservations, isKept) => {
      const place = directory()
      put(place, 'run/systemd/system/x', 'state/agent/journal.db', 'precious')
      symlinkSync(join(place, 'precious'), join(place, 'state/agent/keep-at-purge'))
      const { inspected } = base
      const state = { ...inspected.state, backlog, open_reservations }
      const report = examine({ ...base, ...noAgent, inspected: { ...inspected, state } })
      writeFileSync(join(place, 'report'), JSON.stringify(report))
      putCommand(place, 'deb-systemd-invoke', `: >'${place}/stopped'`)
      putCommand(
        place,
        'tallygate',
        `test -e '${place}/stopped' && test -d "$TALLYGATE_AGENT_STATE_DIRECTORY" && cat '${place}/report'; exit 2`,
      )
      const script = readFileSync(join(root, 'packaging/debian/prerm'), 'utf8')
        .replaceAll('/var/lib/tallygate', join(place, 'state'))
        .replaceAll('/run/systemd/system', join(place, 'run/systemd/system'))
      runScript(place, script, 'prerm', 'remove')
      expect(existsSync(join(place, 'state/keep-at-purge'))).toBe(isKept)
      expect(readFileSync(join(place, 'precious'), 'utf8')).toBe('precious')
    },
  )

  it.each([
    ['upgrade', 'active', ['tallygate-agent.service', 'tallygate-cloud.service']],
    ['upgrade', 'failed', ['tallygate-agent.service', 'tallygate-cloud.service']],
    ['upgrade', 'inactive', ['tallygate-agent.service']],
    // After a removal, all services are stopped.
    ['install', 'inactive', ['tallygate-agent.service', 'tallygate-cloud.service']],
  ])('restarts at an %s, with a cloud service that is %s: %j', (action, state, restarted) => {
    const place = directory()
    put(place, 'run/systemd/system/x')
    const isCloud = 'case "$*" in *tallygate-cloud.service*)'
    putCommand(place, 'systemctl', `${isCloud} echo ${state};; *) echo active;; esac`)
    putCommand(place, 'systemd-sysusers', '')
    putCommand(place, 'deb-systemd-helper', '')
    putCommand(
      place,
      'deb-systemd-invoke',
      `test "$1" = restart && shift && printf '%s\\n' "$@" >>'${place}/restarted'`,
    )
    for (const [script, ...args] of [
      ['preinst', action, '1.0'],
      ['postinst', 'configure', '1.0'],
    ] as const) {
      const text = readFileSync(join(root, 'packaging/debian', script), 'utf8')
        .replaceAll('/var/lib/tallygate', join(place, 'state'))
        .replaceAll('/run/', join(place, 'run/'))
      runScript(place, text, script, ...args)
    }
    expect(readFileSync(join(place, 'restarted'), 'utf8').trim().split('\n')).toEqual(restarted)
    expect(readdirSync(join(place, 'run'))).toEqual(['systemd'])
  })

  it.each([
    ['abort-upgrade', '1.0', []],
    ['abort-deconfigure', 'in-favour', []],
    ['abort-remove', '', ['start tallygate-agent.socket tallygate-agent.service']],
  ])('starts at an %s only what was stopped', (action, argument, calls) => {
    const place = directory()
    put(place, 'run/systemd/system/x', 'run/tallygate-stopped', 'calls')
    for (const name of ['systemctl', 'systemd-sysusers', 'deb-systemd-helper']) putCommand(place, name, '')
    putCommand(place, 'deb-systemd-invoke', `echo "$*" >>'${place}/calls'`)
    writeFileSync(join(place, 'calls'), '')
    const text = readFileSync(join(root, 'packaging/debian/postinst'), 'utf8').replaceAll('/run/', join(place, 'run/'))
    runScript(place, text, 'postinst', action, ...(argument === '' ? [] : [argument]))
    expect(readFileSync(join(place, 'calls'), 'utf8').split('\n').filter(Boolean)).toEqual(calls)
    expect(readdirSync(join(place, 'run'))).toEqual(['systemd'])
  })

  it('has the same bytes however often it is built', () => {
    const [one, two] = [join(directory(), 'p.deb'), join(directory(), 'p.deb')]
    deb(one)
    deb(two)
    expect(readFileSync(one).equals(readFileSync(two))).toBe(true)
  })

  it('orders a version before a release before the release', () => {
    expect(debianVersion('1.0.0-rc.1')).toBe('1.0.0~rc.1')
    expect(debianVersion('1.0.0')).toBe('1.0.0')
  })

  it('brings the runtime that the tests run on', () => {
    const { devDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
      devDependencies: Record<string, string>
    }
    expect(runtime.version).toBe(devDependencies['node'])
    expect(process.version).toBe(`v${runtime.version}`)
  })

  it.each([
    ['agent.toml', (sources: Sources): unknown => loadSettings(agentOptions, sources)],
    ['cloud.toml', (sources: Sources): unknown => loadSettings(cloudOptions, sources)],
  ])('has settings in %s that are understood, also without their #', (name, load) => {
    const text = readFileSync(join(root, 'packaging/debian', name), 'utf8')
    const uncommented = text.replaceAll(/^#(?=[a-z[])/gm, '')
    expect(uncommented).not.toBe(text)
    for (const file of [text, uncommented]) {
      const readText = (path: string): string => (path === name ? file : 'secret')
      expect(() => load({ file: name, env: {}, flags: {}, readText })).not.toThrow()
    }
  })
})

describe('pruning', () => {
  it('leaves what runs on the machine, and the licenses', () => {
    const modules = directory()
    const kept = [
      'a/LICENSE.md',
      'a/index.js',
      'a/lib/test/code.js',
      'a/package.json',
      '@koromix/koffi-linux-arm64/linux_arm64/koffi.node',
      'native/prebuilds/linux-arm64.node',
    ]
    put(modules, ...kept, '.bin/a', 'a/README.md', 'a/index.d.ts', 'a/index.js.map', 'a/test/a.test.js')
    put(modules, 'native/prebuilds/linux-x64.node', '@types/a/index.d.ts', 'better-sqlite3/deps/sqlite3.c')
    put(modules, 'node-addon-api/index.js', '@koromix/koffi-linux-arm64/musl_arm64/koffi.node', 'a/.husky/pre-commit')
    prune(modules, 'linux-arm64')
    const left = readdirSync(modules, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name).slice(modules.length + 1))
    expect(left.sort()).toEqual([...kept].sort())
  })
})
