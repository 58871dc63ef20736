// The completion scripts, made from the commands themselves, each tried with its own shell.
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, test, type TestContext } from 'vitest'
import { everyCommand, shapeOf } from '../../src/cli/shape.ts'
import { wholeProgram } from '../../src/cli/program.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { programForTest } from '../support/program.ts'
import { tallygate } from './outside.ts'

const nothing = { write: () => undefined }
const world = {
  stdout: nothing,
  stderr: nothing,
  env: {},
  now: () => 0,
  readText: () => '',
  ask: () => null,
  stop: () => new AbortController().signal,
}
const shape = shapeOf(await wholeProgram({ ...world, exitWith: () => undefined, onHangup: () => undefined }))
const scriptOf = async (shell: string): Promise<string> => (await tallygate(['completion', shell])).out

/** What a shell offers for lines of which the last word is being typed. */
type Complete = (lines: readonly (readonly string[])[]) => readonly (readonly string[])[]

const PATH = process.env['PATH'] ?? ''

async function bash(): Promise<Complete> {
  const script = await scriptOf('bash')
  return (lines) =>
    lines.map((words) => {
      const line = ['tallygate', ...words]
      const quoted = line.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(' ')
      const commands = `${script}\nCOMP_WORDS=(${quoted}); COMP_CWORD=${line.length - 1}; _tallygate; printf '%s\\n' "\${COMPREPLY[@]}"`
      const said = execFileSync('bash', ['--norc', '--noprofile', '-eu', '-c', commands], {
        encoding: 'utf8',
        cwd: '/',
      })
      return said.split('\n').filter((each) => each !== '')
    })
}

async function zsh(path: string): Promise<Complete> {
  const folder = temporaryDirectory()
  writeFileSync(join(folder, '_tallygate'), await scriptOf('zsh'))
  const offers = new URL('zsh-offers.zsh', import.meta.url).pathname
  return (lines) => {
    const typed = lines.map((words) => ['tallygate', ...words].join(' '))
    const env = { PATH, HOME: folder, TERM: 'dumb' }
    const said = execFileSync(path, ['-f', offers, folder, ...typed], {
      encoding: 'utf8',
      cwd: '/',
      env,
      timeout: 60_000,
    })
    return said.split('\n=\n').slice(0, lines.length).map(listed)
  }
}

/** Where there is nothing to offer. */
const BELL = '\u0007'

/** The words of a list as zsh shows it: in columns, or each with what it is about. */
function listed(shown: string): readonly string[] {
  const isOther = (row: string): boolean =>
    row.trim() === '' || row.includes(BELL) || /^ *(tallygate |print -r|<<end>>)/.test(row)
  const rows = shown.split(/[\r\n]+/).filter((row) => !isOther(row))
  // Words that are about the same stand in one row.
  return rows.flatMap((row) => row.split(' -- ', 1)[0]!.trim().split(/ +/))
}

async function fish(path: string): Promise<Complete> {
  const folder = temporaryDirectory()
  const script = join(folder, 'tallygate.fish')
  writeFileSync(script, await scriptOf('fish'))
  const env = { PATH, HOME: folder, XDG_CONFIG_HOME: folder, XDG_DATA_HOME: folder, TERM: 'dumb' }
  return (lines) => {
    const asked = lines.map((words) => `complete -C '${['tallygate', ...words].join(' ')}'; echo =`)
    const commands = [`source ${script}`, ...asked].join('\n')
    const said = execFileSync(path, ['--no-config', '-c', commands], {
      encoding: 'utf8',
      cwd: '/',
      env,
      timeout: 60_000,
    })
    return said
      .split(/^=$/m)
      .slice(0, lines.length)
      .map((each) => each.split('\n').flatMap((row) => (row === '' ? [] : [row.split('\t', 1)[0]!])))
  }
}

for (const shell of ['bash', 'zsh', 'fish'] as const) {
  describe(`${shell} completes`, { timeout: 90_000 }, () => {
    /** The offers without their order, which is the shell's. */
    const of = async (
      context: TestContext,
      ...lines: readonly (readonly string[])[]
    ): Promise<readonly (readonly string[])[]> => {
      const complete = await (shell === 'bash'
        ? bash()
        : shell === 'zsh'
          ? zsh(programForTest(context, 'zsh', 'TALLYGATE_TEST_ZSH'))
          : fish(programForTest(context, 'fish', 'TALLYGATE_TEST_FISH')))
      return complete(lines).map((words) => words.toSorted())
    }

    it('commands, and those below a command', async (context) => {
      const offered = await of(context, [''], ['do'], ['devi'], ['devices', 'enr'], ['cloud', 'rot'])
      expect(offered[0]).toEqual(expect.arrayContaining(['agent', 'doctor', 'explain', 'support-bundle']))
      expect(offered.slice(1)).toEqual([['doctor'], ['devices'], ['enrollment-token'], ['rotate-signing-key']])
    })

    it('options, of the command that was given, also behind others', async (context) => {
      const lines = [
        ['logs', '--l'],
        ['doctor', '--fix', '--js'],
        ['agent', '--state-dir'],
        ['status', '--state-dir'],
      ]
      expect(await of(context, ...lines)).toEqual([['--level', '--lines'], ['--json'], ['--state-directory'], []])
    })

    it('options of a command, and not those of another one with its name', async (context) => {
      const [below, above] = await of(context, ['cloud', 'backup', '--'], ['backup', '--'])
      expect(below).toContain('--store-path')
      expect(below).not.toContain('--db')
      expect(above).toContain('--db')
      expect(above).not.toContain('--store-path')
    })

    it('the words that an option takes, and files where it takes a file', async (context) => {
      const lines = [
        ['logs', '--level', 'w'],
        ['explain', '--db', '/et'],
        ['logs', '--lines', ''],
      ]
      const [level, file, count] = await of(context, ...lines)
      expect(level).toEqual(['warn'])
      expect(file?.map((each) => each.replaceAll('/', ''))).toContain('etc')
      expect(count).toEqual([])
    })

    it('nothing wrong after a value that looks like a command', async (context) => {
      const [words] = await of(context, ['logs', '--unit', 'devices', '--lev'])
      expect(words).toEqual(['--level'])
    })

    it('every command with every option', async (context) => {
      const commands = [...everyCommand(shape)]
      const offered = await of(context, ...commands.map(({ path }) => [...path, '--']))
      for (const [at, { path, options }] of commands.entries()) {
        for (const { long } of options)
          expect({ path, offered: offered[at] }).toEqual({ path, offered: expect.arrayContaining([long]) as string[] })
      }
    })
  })
}

test('bash completes the word behind the sign of equality', async () => {
  expect((await bash())([['logs', '--level', '=', 'w']])).toEqual([['warn']])
})

test('for another shell there is no script', async () => {
  expect((await tallygate(['completion', 'csh'])).code).toBe(64)
})
