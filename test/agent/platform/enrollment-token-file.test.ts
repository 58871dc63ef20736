import { chmodSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { openTokenFile, tokenFileProblem } from '../../../src/agent/platform/enrollment-token-file.ts'

const path = join(mkdtempSync(join(tmpdir(), 'tallygate-')), 'token')

test('a file that is missing or has content is no problem, an empty one and a directory are', () => {
  expect(tokenFileProblem(path)).toBeNull()
  writeFileSync(path, '\n', { mode: 0o600 })
  expect(tokenFileProblem(path)).toBe(`${path} is empty.`)
  writeFileSync(path, 'a token')
  expect(tokenFileProblem(path)).toBeNull()
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
