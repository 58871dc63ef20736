import { chmodSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { openTokenFile, tokenFileProblem } from '../../../src/agent/platform/enrollment-token-file.ts'

const path = join(mkdtempSync(join(tmpdir(), 'tallygate-')), 'token')

test('a sentence says why a file gives no token', () => {
  expect(tokenFileProblem(path)).toBe(`There is no enrollment token: ${path} does not exist.`)
  expect(tokenFileProblem(`/dev/null/token`)).toBe('There is no enrollment token: /dev/null/token does not exist.')
  writeFileSync(path, '\n', { mode: 0o600 })
  expect(tokenFileProblem(path)).toBe(`There is no enrollment token: ${path} is empty.`)
  writeFileSync(path, 'a token')
  expect(tokenFileProblem(path)).toBe(`The agent has not read ${path} yet: reload or restart it.`)
  expect(tokenFileProblem(join(path, '..'))).toMatch(/ cannot be read: it is a directory\.$/)
})

test('a file that every user can access gets a warning', () => {
  for (const mode of [0o400, 0o600, 0o640]) {
    chmodSync(path, mode)
    expect(openTokenFile(path)).toBeNull()
  }
  chmodSync(path, 0o644)
  expect(openTokenFile(path)).toContain(`in ${path} (mode 0644)`)
  expect(openTokenFile('TALLYGATE_AGENT_ENROLLMENT_TOKEN')).toBeNull()
})
