import { chmodSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { openTokenFile, tokenFileProblem } from '../../../src/agent/platform/enrollment-token-file.ts'
import { temporaryDirectory } from '../harness.ts'

test('a sentence explains why a file gives no token', () => {
  const path = join(temporaryDirectory(), 'token')
  expect(tokenFileProblem(path)).toBe(`There is no enrollment token: ${path} does not exist.`)
  expect(tokenFileProblem(`/dev/null/token`)).toBe('There is no enrollment token: /dev/null/token does not exist.')
  writeFileSync(path, '\n', { mode: 0o600 })
  expect(tokenFileProblem(path)).toBe(`There is no enrollment token: ${path} is empty.`)
  writeFileSync(path, 'a token')
  expect(tokenFileProblem(path)).toBe(`The agent has not read ${path} yet: reload or restart it.`)
  expect(tokenFileProblem(join(path, '..'))).toMatch(/ cannot be read: it is a directory\.$/)
})

test('a file that every user can access gets a warning', () => {
  const path = join(temporaryDirectory(), 'token')
  writeFileSync(path, 'a token')
  for (const mode of [0o400, 0o600, 0o640]) {
    chmodSync(path, mode)
    expect(openTokenFile(path)).toBeNull()
  }
  chmodSync(path, 0o644)
  expect(openTokenFile(path)).toContain(`in ${path} (mode 0644)`)
  expect(openTokenFile('TALLYGATE_AGENT_ENROLLMENT_TOKEN')).toBeNull()
})
