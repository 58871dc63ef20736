import { execFile, spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, onTestFinished, test } from 'vitest'
import type { Command, Option } from 'commander'
import { isSingle } from '../../src/cli/collect.ts'
import { wholeProgram } from '../../src/cli/program.ts'
import { tallygate } from './outside.ts'
import { COMMAND } from '../support/command.ts'

const root = new URL('../../', import.meta.url)
const { version } = JSON.parse(readFileSync(new URL('package.json', root), 'utf8')) as { version: string }

describe('a command line that is not understood is USAGE, exit code 64, in one line:', () => {
  test.each([
    ['an unknown command', ['agnet'], "unknown command 'agnet' (Did you mean agent?)"],
    ['an unknown option', ['token', '--key', 'x', '--amdin'], "unknown option '--amdin' (Did you mean --admin?)"],
    ['an option too little', ['apply'], "required option '-f, --file <file>' not specified"],
    ['an option without its value', ['token', '--admin', '--key'], "option '--key <file>' argument missing"],
    ['an argument that is not UTF-8', ['line-items', 'delete', 'X\uFFFD'], 'An argument is not valid UTF-8.'],
    ['a lifetime that the cloud refuses', ['devices', 'provision', '--ttl', '400d'], 'from 1m to 366d.'],
    ['a sign-in that does not end', ['console', '--for', '400d'], 'Use a duration from 1m to 30d.'],
    ['an interval beyond timers', ['status', '--every', '30d'], 'Use a duration from 1ms to 24h.'],
    ['a token that does not expire', ['token', '--ttl', '3661d'], 'Use a duration from 1s to 3660d.'],
    ['a wait that does not end', ['rotate-key', '--wait', '25h'], 'Use a duration from 1ms to 24h.'],
    [
      'a count with too many digits',
      ['access', '--item', 'A', '--count', '123456789.123456789'],
      'It has too many digits. The nearest number is 123456789.12345679.',
    ],
    [
      'a count of zero',
      ['access', '--item', 'A', '--count', '0.00'],
      'Use a number greater than 0 in digits, such as 2.5.',
    ],
    ['a count with an exponent', ['access', '--item', 'A', '--count', '1e3'], 'Use a number greater than 0 in digits'],
    ['an amount with an exponent', ['line-items', 'set', 'A', '--quantity', '1e3'], 'Use a number in digits'],
    ['a limit with an exponent', ['limits', 'set', 'A', '--limit', '1e30'], 'Use a number in digits'],
    [
      'an amount with too many digits',
      ['limits', 'set', 'A', '--limit', '12345678901.234567'],
      'It has too many digits. The nearest number is 12345678901.234568.',
    ],
    [
      'a rate with too many digits',
      ['rate-tables', 'set', '1', '--rate', 'A=0.12345678901234567891'],
      'It has too many digits. The nearest number is 0.12345678901234568.',
    ],
    [
      'a large rate with too many digits',
      ['rate-tables', 'set', '1', '--rate', 'A=9007199254740993'],
      'It has too many digits. The nearest number is 9007199254740992.',
    ],
    ['a value that is not taken', ['token', '--ttl', 'long'], 'Use a duration such as 30s, 5m or 24h.'],
    ['options that exclude each other', ['token', '--admin', '--client', '--key', 'x'], 'cannot be used with'],
    ['a second value', ['access', '--item', 'A', '--requester', 'user:a', '--item=B'], 'Give --item only once.'],
    ['a second value of a short option', ['apply', '-f', 'a', '--file', 'b'], 'Give --file only once.'],
    ['a second value of a setting', ['agent', '--log-level=warn', '--log-level=info'], 'Give --log-level only once.'],
    ['an argument too many', ['status', 'please'], 'too many arguments'],
    ['an empty argument', ['devices', 'lock', ''], "The argument 'device' is empty."],
    ['an empty argument of several', ['devices', 'label', 'press-7', ''], "The argument 'labels' is empty."],
    ['an empty value', ['access', '--item', '', '--requester', 'user:a'], '--item is empty.'],
    ['an empty value of a setting', ['agent', '--socket-path='], '--socket-path is empty.'],
    ['a requester without a value', ['access', '--item', 'A', '--requester', 'user:'], 'such as user:anna.'],
    ['an empty word', ['conditions', 'set', 'a', '--property', 'b', '--values', 'c,,d'], 'such as design,cad.'],
    ['an argument of another kind', ['sessions', 'lock', 'x'], "argument 'id' 'x' is invalid. Use a UUID."],
    ['help for an unknown command', ['help', 'nope'], "unknown command 'nope'."],
    ['help for an unknown subcommand', ['devices', 'help', 'nope'], "unknown command 'nope'."],
    ['help for an unknown subcommand of a command', ['help', 'devices', 'nope'], "unknown command 'nope'."],
    ['no subcommand', ['devices'], 'Specify a command: enrollment-token, provision, list, '],
    ['an unknown subcommand', ['devices', 'lsit'], "unknown command 'lsit'"],
  ])('%s', async (_what, args, message) => {
    const { code, out, err } = await tallygate(args)
    expect(code).toBe(64)
    expect(out).toBe('')
    expect(err).toMatch(/^tallygate: USAGE: [^\n]* See tallygate( [\w-]+)* --help\.\n$/)
    expect(err).toContain(message)
  })

  test('names the help of the command that was meant', async () => {
    expect((await tallygate(['devices', 'list', '--fox'])).err).toMatch(/ See tallygate devices list --help\.\n$/)
    expect((await tallygate(['frobnicate'])).err).toMatch(/ See tallygate --help\.\n$/)
  })
})

test('the help marks exactly the options that can be repeated', async () => {
  const io = {
    stdout: { write: () => true },
    stderr: { write: () => true },
    env: {},
    now: Date.now,
    readText: () => '',
  }
  const world = {
    ...io,
    stop: () => new AbortController().signal,
    ask: () => null,
    onHangup: () => undefined,
    exitWith: () => undefined,
  }
  const every = (command: Command): readonly Option[] => [...command.options, ...command.commands.flatMap(every)]
  const found = every(await wholeProgram(world)).filter((option) => option.required || option.optional)
  expect(found.length).toBeGreaterThan(100)
  for (const option of found)
    expect([option.flags, isSingle(option)]).toEqual([option.flags, !option.description.includes('can be repeated')])
})

test.each(['backup', 'rotate-signing-key', 'forget-signing-key'])(
  'the help of cloud %s shows which store it takes',
  async (name) => {
    const { out } = await tallygate(['cloud', name, '--help'])
    expect(out).toMatch(/--store-path <value> +Directory/)
    expect(out).toContain('--config <file>')
    expect(out).not.toContain('--http-port')
    const absent = ['cloud', name, ...(name === 'rotate-signing-key' ? [] : ['x']), '--store-path', '/no/such/store']
    expect((await tallygate(absent)).err).toContain('/no/such/store')
  },
)

test.each([
  [
    'backup',
    ['cloud', 'backup', '/tmp/copy.db'],
    /^tallygate: USAGE: The database .*twin\.db does not exist\. .*--store-path/,
  ],
  ['archive', ['usage', 'archive', '--to', '/tmp'], /^tallygate: USAGE: The database .*twin\.db does not exist\. /],
  [
    'forget a key',
    ['cloud', 'forget-signing-key', 'x'],
    /^tallygate: KEY_UNUSABLE: .*signing-key\.pem does not exist\./,
  ],
])('commands that %s make no store in an empty directory', async (_what, args, message) => {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-'))
  onTestFinished(() => rmSync(directory, { recursive: true }))
  const world = { now: () => Date.UTC(2026, 0, 1) }
  const before = args[0] === 'usage' ? ['--until', '2026-01-01'] : []
  const { err } = await tallygate([...args, ...before, '--store-path', directory], world)
  expect([err, readdirSync(directory)]).toEqual([expect.stringMatching(message), []])
})

test.each(['a\nb', 'süd', '', 'x'.repeat(32)])('the name %j is not one of a cell', async (name) => {
  const { code, err } = await tallygate(['devices', 'list', '--url', 'http://127.0.0.1:1', '--cell', name])
  expect([code, err]).toEqual([64, expect.stringContaining('Use the name of a cell, such as north.') as string])
})

describe('an id that begins with a dash', () => {
  const thumbprint = '-99uCXoyN2ty-sDF_-srpwS0qtmaNEvVsV-bUcXc-7g'
  const elsewhere = ['--url', 'http://127.0.0.1:1', '--admin-key', '/no/key.pem']

  test.each([
    ['of a key', ['keys', 'delete', thumbprint, ...elsewhere]],
    ['of a key, after the options', ['keys', 'delete', ...elsewhere, thumbprint]],
    ['with two dashes', ['keys', 'delete', `-${thumbprint.slice(0, -1)}`, ...elsewhere]],
    ['that is said to be one', ['keys', 'delete', ...elsewhere, '--', thumbprint]],
    ['after a value that looks like it', ['keys', 'delete', '--kid', thumbprint, thumbprint, ...elsewhere]],
  ])('%s is an argument', async (_what, args) => {
    expect((await tallygate(args)).err).toMatch(
      /^tallygate: KEY_UNUSABLE: Cannot read \/no\/key\.pem: there is no such file\./,
    )
  })

  test('reports an unknown option and an argument too many', async () => {
    const both = await tallygate(['keys', 'delete', thumbprint, '--fox', ...elsewhere])
    expect(both.err).toContain("unknown option '--fox'")
    const two = await tallygate(['keys', 'delete', thumbprint, thumbprint, ...elsewhere])
    expect(two.err).toContain('too many arguments')
    const mistyped = await tallygate(['keys', 'delete', '-some-very-long-option-of-nobody', ...elsewhere])
    expect(mistyped.err).toContain("unknown option '-some-very-long-option-of-nobody'")
  })

  test('reaches the commands of a twin', async () => {
    const { err } = await tallygate(['cloud', 'forget-signing-key', thumbprint, '--store-path', '/proc/nowhere'])
    expect(err).toMatch(/^tallygate: KEY_UNUSABLE: /)
  })
})

test.each([[['--help']], [[]]])('%j prints the commands in groups with their summaries', async (args) => {
  const { code, out, err } = await tallygate(args)
  expect({ code, err }).toEqual({ code: 0, err: '' })
  for (const name of ['cloud', 'agent', 'token', 'devices', 'status', 'access', 'demo']) {
    expect(out).toMatch(new RegExp(`^ {2}${name} +\\S`, 'm'))
  }
  const headings = [...out.matchAll(/^[A-Z].*:$/gm)].map(([heading]) => heading)
  expect(headings).toEqual(expect.arrayContaining(['Run the services:', 'Manage a cloud:', 'Other:']))
})

test.each([
  [['help', 'help'], ['--help']],
  [
    ['help', 'line-items', 'help'],
    ['line-items', '--help'],
  ],
])('%j shows the same as %j', async (args, same) => {
  expect(await tallygate(args)).toEqual(await tallygate(same))
})

test.each([[['token', '--help']], [['help', 'token']]])('%j shows the help of the command', async (args) => {
  const { code, out } = await tallygate(args)
  expect(code).toBe(0)
  expect(out).toContain('Usage: tallygate token [options]')
  expect(out).toContain('--kid <id>')
})

test('the help of a command with commands names its own help in the same words as that of the program', async () => {
  const { out } = await tallygate(['devices', '--help'])
  expect(out).toMatch(/^ {2}help \[command\] +show the help of a command$/m)
})

test('help shows the help of a command below another one', async () => {
  expect(await tallygate(['help', 'line-items', 'set'])).toEqual(await tallygate(['line-items', 'set', '--help']))
  expect((await tallygate(['help', 'line-items', 'set'])).out).toContain('Usage: tallygate line-items set [options]')
})

test('the help of settings with long names fits a terminal of 80 columns', async () => {
  const { out } = await tallygate(['agent', '--help'])
  const options = out.split('\n').filter((line) => line.startsWith('  '))
  expect(options.length).toBeGreaterThan(100)
  expect(options.filter((line) => line.length > 80)).toEqual([])
})

test('an error shows its stack only when asked for it', async () => {
  const args = ['token', '--admin', '--key', '/no/key.pem']
  const plain = await tallygate(args)
  expect(plain).toMatchObject({ code: 66, out: '' })
  expect(plain.err.split('\n')).toHaveLength(2)
  expect(plain.err).toMatch(
    /^tallygate: KEY_UNUSABLE: Cannot read \/no\/key\.pem: there is no such file\. Check the path, /,
  )
  const debug = await tallygate([...args, '--debug'])
  expect(debug.err).toContain('\nError ENOENT\n    at ')
})

test('a stack does not show a secret that was given in place of a path', async () => {
  const secret = 'eyJhbGciOiJFZERTQSJ9.secret'
  const readText = (path: string): string => readFileSync(path, 'utf8')
  const { err } = await tallygate(['token', '--admin', '--key', secret, '--debug'], { readText })
  expect(err).toContain('KEY_UNUSABLE: Cannot read [secret]: there is no such file.')
  expect(err).toMatch(/\nError ENOENT\n    at /)
  expect(err).not.toContain(secret)
})

describe('as a process', () => {
  test('it prints its version without loading any command', async () => {
    const { stdout } = await promisify(execFile)(process.execPath, [COMMAND, '--version'])
    expect(stdout).toBe(`${version}\n`)
  })

  test('it ends with the exit code of the error', async () => {
    const ended = promisify(execFile)(process.execPath, [COMMAND, 'nonsense'])
    await expect(ended).rejects.toMatchObject({
      code: 64,
      stdout: '',
      stderr: expect.stringMatching(/^tallygate: USAGE: /) as string,
    })
  })

  test('it reads standard input that is a socket, and names it if it is not UTF-8', () => {
    const { status, stderr } = spawnSync(process.execPath, [COMMAND, 'apply', '-f', '-'], { input: Buffer.of(0xff) })
    expect(status).toBe(65)
    expect(String(stderr)).toContain('FILE_INVALID: Cannot read standard input: it is not valid UTF-8.')
  })

  test.each([
    [
      'bytes that are not UTF-8',
      Buffer.from('name: caf\u00e9', 'latin1'),
      /FILE_INVALID: Cannot read \S+site\.yaml: it is not valid UTF-8\./,
    ],
    ['the character U+FFFD', Buffer.from('nmae: \uFFFD'), /FILE_INVALID: \S+site\.yaml:1: nmae/],
  ])('it tells a file with %s from others', async (_what, bytes, message) => {
    const directory = mkdtempSync(join(tmpdir(), 'tallygate-text-'))
    onTestFinished(() => rmSync(directory, { recursive: true }))
    const file = join(directory, 'site.yaml')
    writeFileSync(file, bytes)
    const args = [COMMAND, 'apply', '--file', file, '--url', 'http://127.0.0.1:1']
    await expect(promisify(execFile)(process.execPath, args)).rejects.toMatchObject({
      code: 65,
      stderr: expect.stringMatching(message) as string,
    })
  })

  test('a reader that goes away ends it quietly', async () => {
    const child = spawn(process.execPath, [COMMAND, '--help'], { stdio: ['ignore', 'pipe', 'pipe'] })
    child.stdout.destroy()
    let said = ''
    child.stderr.on('data', (chunk: Buffer) => (said += chunk.toString()))
    const code = await new Promise((resolve) => child.once('close', resolve))
    expect({ code, said }).toEqual({ code: 141, said: '' })
  })
})

test.each(['user:secret@host', '//user:secret@host', 'http//user:secret@host', 'ftp://user:secret@host'])(
  'the address %s is refused without its password',
  async (url) => {
    for (const args of [
      ['line-items', 'list', '--url', url],
      ['import', '--from', url],
    ]) {
      const { code, err } = await tallygate(args)
      expect([code, err]).toEqual([64, expect.stringContaining('USAGE: The address is invalid.') as string])
      expect(err).not.toContain('secret')
    }
  },
)

test('a key or a token in place of the path of its file is not shown', async () => {
  for (const secret of [
    '-----BEGIN PRIVATE KEY-----\nMIGHsecret',
    'eyJhbGciOiJFUzI1NiJ9.secret',
    `MIGHAgEA${'x/+'.repeat(40)}secret`,
  ]) {
    const { code, err } = await tallygate(['token', '--admin', `--key=${secret}`])
    expect([code, err]).toEqual([66, expect.stringContaining('Cannot read [secret]: there is no such file.') as string])
    expect(err).not.toMatch(/secret(?!])/)
  }
})

test.each([
  ['an argument', ['completion', 'x'.repeat(5_000)]],
  ['an option', ['access', '--count', 'x'.repeat(5_000)]],
  ['an option with =', ['apply', `--file=${'x'.repeat(5_000)}`]],
  ['an argument with $&', ['completion', `$&${'x'.repeat(5_000)}`]],
])('a long value of %s is shortened in its error', async (_what, args) => {
  const { code, err } = await tallygate(args)
  expect(code).toBe(64)
  expect(err).toMatch(/^tallygate: USAGE: .*x{198,200}…[^x]/)
  expect(err.length).toBeLessThan(1_000)
})
