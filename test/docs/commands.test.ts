// Commands and settings in the documents: the program takes each command line, and the settings that pages name exist.
import { globSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { parse as parseToml } from 'smol-toml'
import { expect, it } from 'vitest'
import { agentOptions } from '../../src/agent/settings.ts'
import type { Io } from '../../src/cli/io.ts'
import { wholeProgram } from '../../src/cli/program.ts'
import { cloudOptions } from '../../src/cloud/settings.ts'
import { namedOptions } from '../../src/settings/option.ts'

const ROOT = join(import.meta.dirname, '../..')
const pages = globSync(['*.md', 'deploy/**/*.md', 'docs/**/*.md', 'sdk/*/README.md'], { cwd: ROOT }).map((path) => ({
  path,
  text: readFileSync(join(ROOT, path), 'utf8'),
}))

const BLOCK = /^ *```(\w*)\n([^]*?)^ *```$/gm
const SHELL = new Set(['sh', 'bash', 'console'])
/** What begins and ends a command in these blocks. */
const SEPARATOR = /\$\(|[|;&)\n]|(?<=\s)#.*/
/** In the guide to containers, `admin` calls the program in the container. */
const CALL =
  /^(?:\$ |do )?(?:sudo (?:-u \S+ )?(?:--\S+ )?)?(?:(?:docker compose|podman) exec (?:-T )?\w+ )?(?:tallygate(?:\.js)?|admin) +(.*)/

/** The arguments of each call of the program in `text`, with values in place of variables and placeholders. */
function callsIn(text: string): readonly (readonly string[])[] {
  const plain = text
    .replaceAll(/\\\n\s*/g, ' ')
    .replaceAll(/<([\w-]+)>/g, '$1')
    .replaceAll(/"?\$(CLOUD|base)"?/g, 'http://127.0.0.1:7080')
  return plain
    .split(SEPARATOR)
    .flatMap((each) => CALL.exec(each.trim())?.[1] ?? [])
    .filter((rest) => !/\[@\]|\$@/.test(rest))
    .map((rest) => rest.replace(/ [<>].*/, '').match(/(?:"[^"]*"|'[^']*'|[^\s"'])+/g) ?? [])
    .map((words) => words.map((word) => word.replaceAll(/["']/g, '')))
}

const silent = { write: () => true }
const io: Io = {
  stdout: silent,
  stderr: silent,
  env: {},
  now: () => 0,
  readText: () => '',
  ask: () => null,
  stop: () => new AbortController().signal,
  onHangup: () => undefined,
  exitWith: () => undefined,
}

/** What the program says about the arguments; null: it takes them. */
async function refusalOf(args: readonly string[]): Promise<string | null> {
  const program = await wholeProgram(io)
  const taken = new Error('ends the command before it does anything')
  program.hook('preAction', () => {
    throw taken
  })
  try {
    await program.parseAsync(args, { from: 'user' })
  } catch (error) {
    const { code = '', message } = error as { code?: string; message: string }
    if (error !== taken && !/^commander\.(help|helpDisplayed|version)$/.test(code)) return `${code}: ${message}`
  }
  return null
}

it('the program takes each command line of a block of shell lines', async () => {
  const calls = pages.flatMap(({ path, text }) =>
    [...text.matchAll(BLOCK)]
      .filter(([, language = '']) => SHELL.has(language))
      .flatMap(([, , code = '']) => callsIn(code).map((args) => ({ path, args }))),
  )
  expect(calls.length).toBeGreaterThan(100)
  const refused: string[] = []
  for (const { path, args } of calls) {
    const refusal = await refusalOf(args)
    if (refusal !== null) refused.push(`${path}: ${args.join(' ')}: ${refusal}`)
  }
  expect(refused).toEqual([])
})

/** A sentence may name a command, or an option, without everything that it needs. */
const INCOMPLETE = /^commander\.(missingArgument|optionMissingArgument|missingMandatoryOptionValue|invalidArgument)/

it('the program has each command and each option that a sentence names', async () => {
  const calls = pages.flatMap(({ path, text }) =>
    [...text.replaceAll(BLOCK, '').matchAll(/`tallygate ([a-z][^`]*)`/g)]
      .flatMap(([, said = '']) => callsIn(`tallygate ${said.replaceAll(/[[\]\\]/g, '')}`))
      .map((args) => ({ path, args })),
  )
  expect(calls.length).toBeGreaterThan(100)
  const refused: string[] = []
  for (const { path, args } of calls) {
    const refusal = await refusalOf(args.filter((word) => !word.includes('…')))
    if (refusal !== null && !INCOMPLETE.test(refusal)) refused.push(`${path}: ${args.join(' ')}: ${refusal}`)
  }
  expect(refused).toEqual([])
})

const options = { agent: namedOptions(agentOptions), cloud: namedOptions(cloudOptions) }
const keys = new Set(Object.values(options).flatMap((each) => each.map(({ key }) => key)))
const sections = new Set([...keys].filter((key) => key.includes('.')).map((key) => key.split('.')[0]))

/** Files and fields with such names. */
const FILES = new Set(['device.key', 'state.tar', 'status.code', 'sync.ts', 'grants.ts'])

it('each setting that a page names is one of the agent or the cloud', () => {
  const named = pages.flatMap(({ path, text }) =>
    [...text.replaceAll(BLOCK, '').matchAll(/`([a-z_]+)\.([a-z][a-z_0-9]+)(?: = [^`]*)?`/g)]
      .filter(([, section, name]) => sections.has(section) && !FILES.has(`${section}.${name}`))
      .map(([, section, name]) => ({ path, key: `${section}.${name}` })),
  )
  expect(named.length).toBeGreaterThan(100)
  expect(named.filter(({ key }) => !keys.has(key))).toEqual([])
})

it('each block of settings has keys of the agent or the cloud only', () => {
  const blocks = pages.flatMap(({ path, text }) =>
    [...text.matchAll(BLOCK)]
      .filter(([, language]) => language === 'toml')
      .map(([, , code = '']) => ({ path, found: keysIn(parseToml(code.replaceAll(/^ +/gm, ''))) })),
  )
  expect(blocks.length).toBeGreaterThan(10)
  const unknown = blocks.filter(({ found }) =>
    Object.values(options).every((named) => !found.every((key) => named.some((one) => one.key === key))),
  )
  expect(unknown).toEqual([])
})

/** The keys of a settings file; a list of tables is one setting. */
function keysIn(table: object, above = ''): readonly string[] {
  return Object.entries(table).flatMap(([name, value]: [string, unknown]) => {
    const key = `${above}${name}`
    const isTable = typeof value === 'object' && value !== null && !Array.isArray(value)
    return isTable ? keysIn(value, `${key}.`) : [key]
  })
}

it('each variable that a page names is one of the program', () => {
  const variables = new Set(
    Object.values(options).flatMap((each) => each.flatMap(({ env }) => [env, env.replace(/_FILE$/, '')])),
  )
  const others = ['{src,test,crash}/**/*.ts', 'sdk/c/*.h', 'packaging/*.sh', 'deploy/*.{yaml,mjs}', 'vitest.config.ts']
  const source = globSync([...others, '.ci/run'], { cwd: ROOT })
    .map((path) => readFileSync(join(ROOT, path), 'utf8'))
    .join('\n')
  const named = pages.flatMap(({ path, text }) =>
    [...text.matchAll(/\bTALLYGATE_[A-Z0-9_]+\b(?!\*)/g)].map(([name]) => ({ path, name })),
  )
  expect(named.length).toBeGreaterThan(100)
  expect(named.filter(({ name }) => !variables.has(name) && !new RegExp(`\\b${name}\\b`).test(source))).toEqual([])
})

it('each code that a page for users names is in the source', () => {
  const source = globSync(['src/**/*.{ts,sql}', 'sdk/c/*.h'], { cwd: ROOT })
  const words = new Set(source.flatMap((path) => readFileSync(join(ROOT, path), 'utf8').match(/\w+/g) ?? []))
  const named = pages
    .filter(({ path }) => /^(docs\/(how-to|reference|tutorials)\/|README|SECURITY)/.test(path))
    .flatMap(({ path, text }) => [...text.matchAll(/`([A-Z]+(?:_[A-Z]+)+)`/g)].map(([, name = '']) => ({ path, name })))
    // Variables of the program, which have a test above, and of the runtime.
    .filter(({ name }) => !/^(TALLYGATE_|SSL_CERT_)/.test(name))
  expect(named.length).toBeGreaterThan(100)
  expect(named.filter(({ name }) => !words.has(name))).toEqual([])
})

it('each script of the package, with the options that a page names, is there', () => {
  const { scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>
  }
  const calls = pages.flatMap(({ path, text }) =>
    [...text.matchAll(/npm run ([a-z:]+)((?: --(?: [\w.,/=-]+)*)?)/g)].map(([, name = '', rest = '']) => ({
      path,
      name,
      options: [...rest.matchAll(/ --([a-z-]+)/g)].map(([, option]) => option),
    })),
  )
  expect(calls.length).toBeGreaterThan(50)
  expect(calls.filter(({ name }) => scripts[name] === undefined)).toEqual([])
  const unknown = calls.filter(({ name, options: given }) => {
    const [, file = ''] = /^node (\S+\.ts)/.exec(scripts[name] ?? '') ?? []
    const folder = globSync(`${dirname(file)}/**/*.ts`, { cwd: ROOT })
    const source = folder.map((path) => readFileSync(join(ROOT, path), 'utf8')).join('\n')
    return file !== '' && given.some((option) => !new RegExp(`\\b${option}\\b`).test(source))
  })
  expect(unknown).toEqual([])
})
