import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pino } from 'pino'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { logOutput } from '../../src/platform/log-output.ts'
import { temporaryDirectory } from '../agent/harness.ts'

let full: number
beforeEach(() => {
  full = openSync('/dev/full', 'w')
})
afterEach(() => closeSync(full))

/** Resolves when a line could not be written. */
const failed = (output: ReturnType<typeof logOutput>) =>
  new Promise<void>((resolve) => output.once('error', () => resolve()))

it('takes log lines while they cannot be written, and ends without them', async () => {
  const output = logOutput(full)
  const log = pino({}, output)
  for (let line = 0; line < 3; line += 1) {
    const isFailed = failed(output)
    log.info('a line')
    await isFailed
  }
  output.flushSync()
})

it('keeps a limited number of the lines that it cannot write', async () => {
  const output = logOutput(full)
  let dropped = 0
  output.on('drop', () => (dropped += 1))
  const isFailed = failed(output)
  const line = `${'x'.repeat(1023)}\n`
  for (let count = 0; count < 1030; count += 1) output.write(line)
  await isFailed
  expect(dropped).toBe(6)
})

it('writes lines that can be written', async () => {
  const path = join(temporaryDirectory(), 'log')
  const file = openSync(path, 'w')
  const output = logOutput(file)
  pino({}, output).info('a line')
  await vi.waitFor(() => expect(readFileSync(path, 'utf8')).toMatch(/"msg":"a line"}\n$/))
  output.flushSync()
  closeSync(file)
})
