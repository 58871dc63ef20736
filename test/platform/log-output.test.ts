import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pino } from 'pino'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { logOutput } from '../../src/platform/log-output.ts'
import { temporaryDirectory } from '../agent/harness.ts'

let full: number
beforeEach(() => {
  full = openSync('/dev/full', 'w')
})
afterEach(() => closeSync(full))

it('takes log lines while they cannot be written', () => {
  const log = pino({}, logOutput(full))
  for (let line = 0; line < 3; line += 1) expect(() => log.info('a line')).not.toThrow()
})

it('keeps a limited number of the lines that it cannot write', () => {
  const output = logOutput(full)
  let dropped = 0
  output.on('drop', () => (dropped += 1))
  const line = `${'x'.repeat(1023)}\n`
  for (let count = 0; count < 1030; count += 1) output.write(line)
  expect(dropped).toBe(6)
})

it('writes lines at once', () => {
  const path = join(temporaryDirectory(), 'log')
  const file = openSync(path, 'w')
  pino({}, logOutput(file)).info('a line')
  expect(readFileSync(path, 'utf8')).toMatch(/"msg":"a line"}\n$/)
  closeSync(file)
})
