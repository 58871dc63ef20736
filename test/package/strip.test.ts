import { execFileSync } from 'node:child_process'
import { copyFileSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { strip } from '../../scripts/package/strip.ts'

function file(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'tallygate-strip-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  return join(folder, name)
}

it('removes symbols from the runtime, which still runs native addons', () => {
  const node = file('node')
  copyFileSync(process.execPath, node)
  const before = statSync(node).size
  strip(node)
  expect(statSync(node).size).toBeLessThan(before * 0.85)
  const code = `new (require('better-sqlite3'))(':memory:').prepare('SELECT 6 * 7').pluck().get()`
  expect(execFileSync(node, ['-p', code], { encoding: 'utf8' })).toBe('42\n')
})

it('changes nothing the second time', () => {
  const node = file('node')
  copyFileSync(process.execPath, node)
  strip(node)
  const once = statSync(node).size
  strip(node)
  expect(statSync(node).size).toBe(once)
})

it('refuses a file of another kind and leaves it unchanged', () => {
  const text = file('text')
  writeFileSync(text, '#!/bin/sh\n')
  expect(() => strip(text)).toThrow('is not a 64-bit ELF file')
  expect(readFileSync(text, 'utf8')).toBe('#!/bin/sh\n')
})
