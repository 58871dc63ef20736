// The completion scripts, made from the commands themselves and tried with a real bash.
import { execFileSync } from 'node:child_process'
import { describe, expect, it, test } from 'vitest'
import { everyCommand, shapeOf } from '../../src/cli/shape.ts'
import { wholeProgram } from '../../src/cli/program.ts'
import { tallygate } from './outside.ts'

const { out: script } = await tallygate(['completion', 'bash'])
const nothing = { write: () => undefined }
const world = {
  stdout: nothing,
  stderr: nothing,
  env: {},
  now: () => 0,
  readText: () => '',
  stop: new AbortController().signal,
}
const shape = shapeOf(await wholeProgram({ ...world, exitWith: () => undefined, onHangup: () => undefined }))

/** What bash offers for a line of which the last word is being typed. */
function complete(...words: readonly string[]): readonly string[] {
  const line = ['tallygate', ...words]
  const quoted = line.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(' ')
  const commands = `${script}\nCOMP_WORDS=(${quoted}); COMP_CWORD=${line.length - 1}; _tallygate; printf '%s\\n' "\${COMPREPLY[@]}"`
  const said = execFileSync('bash', ['--norc', '--noprofile', '-eu', '-c', commands], { encoding: 'utf8', cwd: '/' })
  return said.split('\n').filter((each) => each !== '')
}

describe('bash completes', () => {
  it('commands, and those below a command', () => {
    expect(complete('')).toEqual(expect.arrayContaining(['agent', 'doctor', 'explain', 'support-bundle', '--version']))
    expect(complete('do')).toEqual(['doctor'])
    expect(complete('devices', 'enr')).toEqual(['enrollment-token'])
  })

  it('options, of the command that was given, also behind others', () => {
    expect(complete('logs', '--l')).toEqual(['--lines', '--level'])
    expect(complete('doctor', '--fix', '--js')).toEqual(['--json'])
    expect(complete('agent', '--state-d')).toEqual(['--state-directory'])
    expect(complete('status', '--state-d')).toEqual([])
  })

  it('the words that an option takes, and files where it takes a file', () => {
    expect(complete('logs', '--level', 'w')).toEqual(['warn'])
    expect(complete('logs', '--level', '=', 'w')).toEqual(['warn'])
    expect(complete('explain', '--db', '/et')).toContain('/etc')
    expect(complete('logs', '--lines', '')).toEqual([])
  })

  it('nothing wrong after a value that looks like a command', () => {
    expect(complete('logs', '--unit', 'devices', '--lev')).toEqual(['--level'])
  })

  it('every command with every option', () => {
    for (const { path, options } of everyCommand(shape)) {
      const offered = complete(...path, '--')
      for (const { long } of options) expect(offered).toContain(long)
    }
  })
})

test('the scripts of zsh and fish name every command and every option', async () => {
  for (const shell of ['zsh', 'fish']) {
    const { code, out } = await tallygate(['completion', shell])
    expect(code).toBe(0)
    for (const { path, options } of everyCommand(shape)) {
      for (const word of [...path, ...options.map(({ long }) => long.replace(/^--/, ''))]) expect(out).toContain(word)
    }
  }
  expect((await tallygate(['completion', 'csh'])).code).toBe(64)
})
