import { execFileSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'

const USER = 65_534

test.skipIf(process.getuid?.() !== 0)('a database is named that this user may not use, or its directory', () => {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-'))
  onTestFinished(() => rmSync(directory, { recursive: true }))
  chmodSync(directory, 0o755)
  // Another user may not be able to read the project.
  copyFileSync(new URL('../../src/platform/denial-of.ts', import.meta.url), join(directory, 'tried.ts'))
  const [path, readable, none] = ['twin.db', 'own.db', 'none.db'].map((name) => join(directory, name)) as [
    string,
    string,
    string,
  ]
  writeFileSync(path, '', { mode: 0o600 })
  writeFileSync(readable, '')
  chmodSync(readable, 0o666)
  const script = `import(process.argv[1]).then((tried) => console.log(JSON.stringify(process.argv.slice(2).map(tried.denialOf))))`
  const args = ['-e', script, join(directory, 'tried.ts'), path, readable, none]
  const told = execFileSync(process.execPath, args, { uid: USER, cwd: directory, encoding: 'utf8' })
  const denial = (at: string) => `the user with the id ${USER} may not read and write ${at}`
  expect(JSON.parse(told)).toEqual([denial(path), null, denial(directory)])
})
