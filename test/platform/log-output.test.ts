import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pino } from 'pino'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { createLog, logOutput } from '../../src/platform/log-output.ts'
import { CodedError } from '../../src/protocol/errors.ts'
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

describe('an error in a log line', () => {
  const fieldsOf = (err: unknown, level = 'info') => {
    const lines: string[] = []
    createLog(level, { write: (line) => void lines.push(line) })
      .child({})
      .error({ err }, 'failed')
    return (JSON.parse(lines.join('')) as { readonly err: Readonly<Record<string, unknown>> }).err
  }

  it('names the reason once, and has no stack if it has a code', () => {
    const cause = new Error('connection timeout')
    const error = new CodedError('DATABASE_UNREACHABLE', 'db.example:5432: connection timeout', { cause })
    const shown = { type: 'CodedError', code: 'DATABASE_UNREACHABLE', message: 'db.example:5432: connection timeout' }
    expect(fieldsOf(error)).toEqual(shown)
    const { stack, ...others } = fieldsOf(error, 'debug')
    expect(others).toEqual(shown)
    expect(stack).toMatch(
      /^CodedError: db.example:5432[^]*\n {4}at [^]*\ncaused by: Error: connection timeout\n {4}at /,
    )
  })

  it('keeps a cause that the message does not name, and the details', () => {
    const options = { cause: new Error('no quorum'), details: { sqlState: '53100' } }
    expect(fieldsOf(new CodedError('NOT_RECORDED', 'The change is not recorded.', options))).toEqual({
      ...{ type: 'CodedError', code: 'NOT_RECORDED', message: 'The change is not recorded.' },
      ...{ cause: 'no quorum', details: { sqlState: '53100' } },
    })
  })

  it('has its stack if it is unexpected', () => {
    for (const error of [new Error('invariant'), new CodedError('INTERNAL', 'invariant')]) {
      expect(fieldsOf(error)['stack']).toContain('invariant\n    at ')
    }
    expect(fieldsOf('a text')).toBe('a text')
  })
})
