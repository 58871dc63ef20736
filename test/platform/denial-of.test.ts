import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, chownSync, copyFileSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { absenceOf, denialOf } from '../../src/platform/denial-of.ts'

const USER = 65_534

/** Another user may not be able to read the project. */
function copiedInto(directory: string): string {
  for (const name of ['denial-of.ts', 'libc-call.ts'])
    copyFileSync(new URL(`../../src/platform/${name}`, import.meta.url), join(directory, name))
  return join(directory, 'denial-of.ts')
}

test.skipIf(process.getuid?.() !== 0)('a database is named that this user may not use, or its directory', () => {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-'))
  onTestFinished(() => rmSync(directory, { recursive: true }))
  chmodSync(directory, 0o755)
  const copy = copiedInto(directory)
  const [path, readable, none] = ['twin.db', 'own.db', 'none.db'].map((name) => join(directory, name)) as [
    string,
    string,
    string,
  ]
  writeFileSync(path, '', { mode: 0o600 })
  writeFileSync(readable, '')
  chmodSync(readable, 0o666)
  const script = `import(process.argv[1]).then((tried) => console.log(JSON.stringify(process.argv.slice(2).map((path) => tried.denialOf(path)?.reason ?? null))))`
  const args = ['-e', script, copy, path, readable, none]
  const told = execFileSync(process.execPath, args, { uid: USER, cwd: directory, encoding: 'utf8' })
  const denial = (at: string) => `the user with the id ${USER} may not read and write ${at}`
  expect(JSON.parse(told)).toEqual([denial(path), null, denial(directory)])
})

test.skipIf(process.getuid?.() !== 0)(
  'root without its capabilities is named, and no attribute of the file',
  ({ skip }) => {
    const directory = mkdtempSync(join(tmpdir(), 'tallygate-'))
    onTestFinished(() => rmSync(directory, { recursive: true }))
    const [copy, path] = [copiedInto(directory), join(directory, 'twin.db')]
    writeFileSync(path, '', { mode: 0o600 })
    chownSync(path, USER, USER)
    const script = 'import(process.argv[1]).then((tried) => console.log(tried.denialOf(process.argv[2]).reason))'
    const without = ['--bounding-set', '-fowner,-dac_override,-dac_read_search']
    const { error, stdout } = spawnSync('setpriv', [...without, process.execPath, '-e', script, copy, path], {
      encoding: 'utf8',
    })
    if (error !== undefined) skip('setpriv is not installed')
    expect(stdout).toBe(`the user with the id 0 may not read and write ${path}\n`)
  },
)

test('a file that cannot be looked at is not reported as missing', () => {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-'))
  onTestFinished(() => rmSync(directory, { recursive: true }))
  const [file, loop] = [join(directory, 'file'), join(directory, 'loop')]
  writeFileSync(file, '')
  symlinkSync(loop, loop)
  expect([file, join(directory, 'none'), join(file, 'below'), loop, directory].map(absenceOf)).toEqual([
    null,
    'does not exist',
    'does not exist',
    'cannot be accessed (ELOOP)',
    'is a directory',
  ])
})

test.skipIf(process.getuid?.() !== 0)('a file in a directory of another user cannot be accessed', () => {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-'))
  onTestFinished(() => rmSync(directory, { recursive: true }))
  process.seteuid?.(USER)
  try {
    expect(absenceOf(join(directory, 'twin.db'))).toBe('cannot be accessed by this user')
  } finally {
    process.seteuid?.(0)
  }
})

test.for([
  ['', 'i', 'immutable'],
  ['twin.db', 'i', 'immutable'],
  ['twin.db-wal', 'i', 'immutable'],
  ['twin.db', 'a', 'append-only'],
  ['twin.db-wal', 'a', 'append-only'],
] as const)('names %j with the attribute %s, also to root', ([name, attribute, what], { skip }) => {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-denial-'))
  const path = join(directory, 'twin.db')
  for (const file of [path, `${path}-wal`]) writeFileSync(file, '')
  const place = join(directory, name)
  const allow = (): void => void spawnSync('chattr', [`-${attribute}`, place])
  onTestFinished(() => {
    allow()
    rmSync(directory, { recursive: true })
  })
  if (spawnSync('chattr', [`+${attribute}`, place]).status !== 0) {
    skip('this user or file system cannot set the attributes of a file')
  }
  const changedAt = () => statSync(place, { bigint: true }).ctimeNs
  const before = changedAt()
  const remedy = `Run \`chattr -${attribute} ${place}\`.`
  expect(denialOf(path)).toEqual({ reason: `${place} is ${what}`, remedy })
  expect(changedAt()).toBe(before)
  allow()
  const allowedAt = changedAt()
  expect(denialOf(path)).toBeNull()
  expect(changedAt()).toBe(allowedAt)
})
