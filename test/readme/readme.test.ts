import { execFile } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { freePort } from '../support/free-port.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const readme = readFileSync(join(root, 'README.md'), 'utf8')
const tutorial = readFileSync(join(root, 'docs/tutorials/service-api.md'), 'utf8')
const migration = readFileSync(join(root, 'docs/how-to/migrate.md'), 'utf8')

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tallygate-readme-'))
})
afterEach(() => {
  rmSync(directory, { recursive: true })
})

test('every file that the README links to is there', () => {
  const links = [...readme.matchAll(/\]\(([^)#]+)\)/g)].map(([, link]) => link!).filter((link) => !link.includes('://'))
  expect(links.length).toBeGreaterThan(5)
  expect(links.filter((link) => !existsSync(join(root, link)))).toEqual([])
})

const guides = [
  'README.md',
  'deploy/README.md',
  ...readdirSync(join(root, 'docs/how-to')).map((name) => `docs/how-to/${name}`),
]
const texts = guides.map((guide) => readFileSync(join(root, guide), 'utf8')).join('\n')

test('every secret that a guide installs belongs to the user of the service that reads it', () => {
  // From standard input, it makes a file of the administrator.
  const installed = [...texts.matchAll(/\binstall -m [46]00 (?!\/dev\/stdin).*$/gm)].map(([line]) => line)
  expect(installed.length).toBeGreaterThan(2)
  expect(installed.filter((line) => !/ -o tallygate(-cloud)? /.test(line))).toEqual([])
})

test('every database that a guide creates belongs to the user who connects, without which PostgreSQL 15 refuses tables', () => {
  const created = [...texts.matchAll(/^.*\bcreatedb .*$/gm)].map(([line]) => line)
  expect(created.length).toBeGreaterThan(2)
  // In the containers, that user is the superuser.
  expect(created.filter((line) => !/createdb (--owner|-U) tallygate /.test(line))).toEqual([])
})

test('the README’s two commands are scripts of the package', () => {
  const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>
  }
  expect(readme).toContain('npm ci && npm run demo')
  expect(readme).toContain('npm ci && npm test')
  expect(Object.keys(scripts)).toEqual(expect.arrayContaining(['demo', 'test']))
})

test('the lines to try by hand do what they say', async () => {
  const stdout = await pasted(readme.slice(readme.indexOf('## Try it by hand')))
  const answers = [...stdout.matchAll(/"totalTokensCharged":([\d.]+)/g)].map(([, charged]) => charged)
  expect(answers).toEqual(['2.125', '2.125'])
  expect(stdout).toContain('This device is offline and continues to decide')
  expect(stdout).toMatch(/ledger +2 entries/)
  expect(stdout).toMatch(/^FIRST-1000 +\d+\.75 +4\.25$/m)
}, 90_000)

test.each([
  ['v1.0', ['101', '203', '101']],
  ['v1.1', ['1001', '2003', '1001']],
])(
  'the tutorial of the service API does what it says in %s',
  async (version, codes) => {
    const stdout = await pasted(tutorial, ['v=v1.1', `v=${version}`])
    expect([...stdout.matchAll(/"status":{"code":"(\d+)"/g)].map(([, code]) => code)).toEqual(codes)
    expect([...stdout.matchAll(/"totalTokensCharged":([\d.]+)/g)].map(([, charged]) => charged)).toEqual([
      '30',
      '0',
      '6',
    ])
    expect([...stdout.matchAll(/"state":"([A-Z]+)"/g)].map(([, state]) => state)).toEqual([
      'DEPLOYED',
      'ACTIVE',
      'TERMINATED',
      'DEPLOYED',
    ])
    expect([...stdout.matchAll(/"used":([\d.]+)/g)].map(([, used]) => Math.floor(Number(used)))).toEqual([0, 0, 30, 30])
    const records = stdout.split('\n').filter((line) => line.includes(',ACT-1,') || line.includes('DENIED_BY_RULE'))
    expect(records.map((line) => /(REQUEST|REFUND),(\w+),/.exec(line)?.slice(1))).toEqual([
      ['REQUEST', 'GRANTED'],
      ['REQUEST', 'DENIED_BY_RULE'],
      ['REQUEST', 'GRANTED'],
      ['REFUND', 'REFUNDED'],
    ])
  },
  90_000,
)

test('the page about migration does what it says', async () => {
  const stdout = await pasted(migration)
  const used = [...stdout.matchAll(/line item ACT-1 +used +(\S+) +(\S+)/g)].map(([, ...amounts]) => amounts)
  expect(used).toEqual([
    ['-', '30'],
    ['-', '30'],
  ])
  expect(stdout).toContain('Dry run: nothing was changed.')
  expect(stdout).toMatch(/^Applied \d changes in 1 instance and the rate tables\.$/m)
  expect(stdout).toMatch(/^No changes\.$/m)
  expect(stdout).toMatch(/import use .*ACT-1.*after: 30$/m)
}, 90_000)

/** The output of the first block of shell lines in `page`, with one text replaced by another. */
async function pasted(page: string, change: readonly [string, string] = ['', '']): Promise<string> {
  const block = /```sh\n([^]*?)```/.exec(page)?.[1]
  // What differs from what a reader pastes besides: ports that are surely free.
  const [port, other] = [await freePort(), await freePort()]
  const lines = block!
    .replaceAll(/(127\.0\.0\.1:|--http-port )7080/g, `$1${port}`)
    .replaceAll(/(127\.0\.0\.1:|--http-port )7081/g, `$1${other}`)
    .replace(...change)
  const script = `trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n${lines}`
  writeFileSync(
    join(directory, 'curl'),
    `#!/bin/sh\nexec "${process.execPath}" "${join(root, 'test/readme/curl.ts')}" "$@"\n`,
  )
  chmodSync(join(directory, 'curl'), 0o755)
  const path = `${process.env['PATH'] ?? ''}:${directory}`
  const { stdout } = await promisify(execFile)('bash', ['-euo', 'pipefail', '-c', script], {
    cwd: root,
    timeout: 60_000,
    env: {
      PATH: path,
      TMPDIR: directory,
      TALLYGATE_CLOUD_HTTP_PORT: String(port),
      TALLYGATE_CLOUD_PUSH_PORT: '0',
    },
  })
  return stdout
}
