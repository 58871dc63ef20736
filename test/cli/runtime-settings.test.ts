// The runtime settings of an installed agent and cloud, whichever way they were installed.
import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { temporaryDirectory } from '../agent/harness.ts'

const SETTINGS = [
  '--max-semi-space-size=8',
  '--max-old-space-size=256',
  '--heap-growing-percent=40',
  '--no-memory-pool',
  '--expose-gc',
]
const CLOUD_SETTINGS = ['--max-semi-space-size=16']

/** An installation without the program, which shows how it was started. */
function started(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const home = temporaryDirectory()
  for (const folder of ['bin', 'dist', 'dist/cli']) mkdirSync(join(home, folder))
  writeFileSync(join(home, 'package.json'), '{"type":"module"}')
  copyFileSync('bin/tallygate.js', join(home, 'bin/tallygate.js'))
  writeFileSync(
    join(home, 'dist/cli/main.js'),
    'console.log(JSON.stringify([process.execArgv, process.argv.slice(2), process.env.MALLOC_ARENA_MAX ?? null]))',
  )
  const { MALLOC_ARENA_MAX: _own, LISTEN_FDS: _passed, NODE_OPTIONS: _options, ...outer } = process.env
  const { stdout, stderr } = spawnSync(
    process.execPath,
    [...args.slice(0, -2), join(home, 'bin/tallygate.js'), ...args.slice(-2)],
    {
      encoding: 'utf8',
      env: { ...outer, ...env },
    },
  )
  expect(stderr).toBe('')
  return JSON.parse(stdout) as unknown
}

test('an agent gets the settings for little memory, and keeps its own', () => {
  expect(started(['agent', '--help'])).toEqual([SETTINGS, ['agent', '--help'], '2'])
  expect(started(['--no-warnings', 'agent', '-x'], { MALLOC_ARENA_MAX: '3' })).toEqual([
    ['--no-warnings', ...SETTINGS],
    ['agent', '-x'],
    '3',
  ])
})

function asNode(version: string): readonly string[] {
  const versions = `{ value: { ...process.versions, node: '${version}' } }`
  return ['--import', `data:text/javascript,Object.defineProperty(process, 'versions', ${versions})`]
}

test.each(['22.20.0', '24.10.1'])('Node %s is too old', (version) => {
  const { status, stderr } = spawnSync(process.execPath, [...asNode(version), 'bin/tallygate.js', '--version'], {
    encoding: 'utf8',
  })
  expect(status).toBe(78)
  expect(stderr).toContain(`NODE_TOO_OLD: this is Node ${version}, tallygate needs Node 24.11 or newer`)
})

test('an agent on Node 24 gets only settings that Node 24 knows', () => {
  const import24 = asNode('24.11.0')
  const known = SETTINGS.filter((setting) => setting !== '--no-memory-pool')
  expect(started([...import24, 'agent', '-x'])).toEqual([[...import24, ...known], ['agent', '-x'], '2'])
})

test('a cloud gets the setting for little memory while devices deliver, and keeps its own', () => {
  expect(started(['cloud', '-x'])).toEqual([CLOUD_SETTINGS, ['cloud', '-x'], null])
  const own = ['--max-semi-space-size=32']
  expect(started([...own, 'cloud', '-x'])).toEqual([own, ['cloud', '-x'], null])
})

test('an agent with sockets of the service manager, one with the settings, and other commands start as they are', () => {
  expect(started(['agent', '-x'], { LISTEN_FDS: '1' })).toEqual([[], ['agent', '-x'], null])
  expect(started([...SETTINGS, 'agent', '-x'])).toEqual([SETTINGS, ['agent', '-x'], null])
  expect(started(['usage', '-x'])).toEqual([[], ['usage', '-x'], null])
  expect(started(['constructor', '-x'])).toEqual([[], ['constructor', '-x'], null])
})

test('the Debian package starts both with the same settings', () => {
  const wrapper = readFileSync('packaging/debian/wrapper.sh', 'utf8')
  expect(wrapper).toContain(`node ${SETTINGS.join(' ')} `)
  expect(wrapper).toContain(`node ${CLOUD_SETTINGS.join(' ')} `)
})
