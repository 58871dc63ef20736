/** Each command is a module that is loaded only when it is called. An error is one line: `tallygate: CODE: ...`. */
import { Command, CommanderError, type Option } from 'commander'
import { CodedError, messageOf, remedyAfter } from '../protocol/errors.ts'
import { isSingle } from './collect.ts'
import type { Io, World } from './io.ts'
import { softwareVersion } from '../platform/software-version.ts'
import { writeLines } from './lines.ts'

interface CommandModule {
  command(io: Io): Command
}

type Entry = readonly [summary: string, load: () => Promise<CommandModule>]

const GROUPS: Readonly<Record<string, Readonly<Record<string, Entry>>>> = {
  'Try it:': {
    dev: ['run a cloud and an agent with a sample site, for development', () => import('./commands/dev.ts')],
    demo: ['run cloud and agent on this machine as a demo', () => import('./commands/demo.ts')],
  },
  'Run the services:': {
    cloud: ['run the cloud service', () => import('./commands/cloud.ts')],
    agent: ['run the agent of this device', () => import('./commands/agent.ts')],
  },
  'Select a cloud:': {
    context: ['select the cloud that commands administer', () => import('./commands/context.ts')],
    login: ['sign in to a cloud with OpenID Connect', () => import('./commands/login.ts')],
    logout: ['sign out of a cloud', () => import('./commands/logout.ts')],
    whoami: ['show who you are for a cloud, and your roles', () => import('./commands/whoami.ts')],
    console: ['open the console of a cloud in a browser', () => import('./commands/console.ts')],
  },
  'Manage a cloud:': {
    apply: ['change a cloud to match a file', () => import('./commands/apply.ts')],
    instances: noun('instances', "manage the instances of customers' accounts"),
    'line-items': noun('line-items', 'manage line items, the pools of tokens of an instance'),
    'rate-tables': noun('rate-tables', 'manage rate tables, the prices of items'),
    rules: noun('rules', 'manage rules of access: the actions of each line item'),
    conditions: noun('conditions', 'manage conditions, which actions refer to'),
    limits: noun('limits', 'manage consumption limits of the requesters of a line item'),
    devices: ['list, enroll, lock, drain and terminate devices', () => import('./commands/devices.ts')],
    sessions: ['list, lock and end sessions in the cloud', () => import('./commands/sessions.ts')],
    usage: ['show usage records, add them up and export them for billing', () => import('./commands/usage.ts')],
    events: ['show events, and send them to sinks again', () => import('./commands/events.ts')],
    audit: ['list who changed what in the cloud', () => import('./commands/audit.ts')],
    keys: ['manage the keys of administrators and clients', () => import('./commands/keys.ts')],
    configuration: noun('configuration', 'manage the configuration values of the service'),
    import: [
      'import from another service: instances, line items with their use, rules',
      () => import('./commands/import.ts'),
    ],
  },
  'Maintain a cloud:': {
    recovery: ['show and end the recovery of a restored cloud', () => import('./commands/recovery.ts')],
    sweeps: ['show and resume paused work of the cloud', () => import('./commands/sweeps.ts')],
  },
  'Use the agent of this device:': {
    status: ["show the agent's status", () => import('./commands/status.ts')],
    offers: ['list what can be requested from the agent', () => import('./commands/offers.ts')],
    access: ['send an access request to the agent', () => import('./commands/access.ts')],
    session: ['manage sessions of the agent', () => import('./commands/session.ts')],
    explain: ['show why a request was granted or refused', () => import('./commands/explain.ts')],
  },
  'Maintain the agent of this device:': {
    doctor: ['find and repair problems of the agent', () => import('./commands/doctor.ts')],
    logs: ['show the last log lines of the agent', () => import('./commands/logs.ts')],
    'support-bundle': [
      'pack diagnostic data for support, without secrets',
      () => import('./commands/support-bundle.ts'),
    ],
    'rotate-key': ['replace the key of this device', () => import('./commands/rotate-key.ts')],
    verify: ['check the ledger of a device', () => import('./commands/verify.ts')],
    backup: ['copy the ledger of a device while its agent runs', () => import('./commands/backup.ts')],
    restore: ['replace a ledger with a backup', () => import('./commands/restore.ts')],
  },
  'Other:': {
    token: ['make an access token from a private key', () => import('./commands/token.ts')],
    completion: [
      'print the completion script of a shell',
      async () => {
        const { command } = await import('./commands/completion.ts')
        return { command: (io) => command(io, () => wholeProgram(io)) }
      },
    ],
  },
}

/** Commander wraps no column that is narrower. The names of settings leave less than its default of 40. */
const WRAPPED_MIN_CHARACTERS = 20

const COMMANDS: Readonly<Record<string, Entry>> = Object.fromEntries(
  Object.values(GROUPS).flatMap(Object.entries<Entry>),
)

/** A command of `src/cli/nouns` without other verbs. */
function noun(name: string, summary: string): Entry {
  const load = async (): Promise<CommandModule> => {
    const { nounCommand } = await import('./nouns/command.ts')
    return {
      command: (io) => nounCommand(name, io).description(`${summary.replace(/^manage/, 'Manages')}.`),
    }
  }
  return [summary, load]
}

/** Runs one command line and returns the exit code. Never throws, never ends the process. */
export async function run(args: readonly string[], world: World): Promise<number> {
  const debug = args.includes('--debug')
  const given = args.filter((arg) => arg !== '--debug')
  let exitCode = 0
  const io: Io = { ...world, exitWith: (code) => (exitCode = code) }
  let called = new Command('tallygate')
  try {
    // Node decodes bytes that are not UTF-8 to U+FFFD: different names would become the same.
    if (args.some((arg) => arg.includes('\uFFFD'))) throw new CodedError('USAGE', 'An argument is not valid UTF-8.')
    const name = given.find((arg) => Object.hasOwn(COMMANDS, arg))
    const program = await build(io, (each) => each === name)
    called = calledBy(program, given)
    if (given.length === 0 || (given[0] === 'help' && given.length > 1)) {
      named(program, given.slice(1)).outputHelp()
      return exitCode
    }
    await program.parseAsync(given, { from: 'user' })
    return exitCode
  } catch (error) {
    if (error instanceof CommanderError && error.exitCode === 0) return 0
    const coded = asCoded(error, called, given)
    writeLines(io.stderr, [withShortArguments(line(coded, called), given)])
    if (debug) writeLines(io.stderr, framesOf(coded.cause instanceof Error ? coded.cause : coded))
    return coded.exitCode
  }
}

/** Without the message, which can contain a secret that was given in place of a path. */
function framesOf(error: Error): readonly string[] {
  const { code } = error as { readonly code?: unknown }
  const frames = (error.stack ?? '').split('\n').filter((line) => /^ {4}at /.test(line))
  return [typeof code === 'string' ? `${error.name} ${code}` : error.name, ...frames]
}

export function wholeProgram(io: Io): Promise<Command> {
  return build(io, () => true)
}

/** @param isLoaded other commands have only a name and a summary */
async function build(io: Io, isLoaded: (name: string) => boolean): Promise<Command> {
  const program = new Command('tallygate')
    .description('Token-metered access decisions on the device, exactly-once accounting in the cloud.')
    .version(softwareVersion(), '--version', 'print the version')
    .option('--debug', 'show the stack of an error')
  for (const [heading, commands] of Object.entries(GROUPS)) {
    program.commandsGroup(heading)
    for (const [name, [summary, load]] of Object.entries(commands)) {
      if (isLoaded(name)) program.addCommand((await load()).command(io).summary(summary))
      else program.command(name).summary(summary)
    }
  }
  // Last, so that it is under the last heading.
  program.helpCommand('help [command...]', 'show the help of a command')
  program.hook('preAction', (_program, { args, registeredArguments }) => {
    const index = args.indexOf('')
    const empty = registeredArguments[index] ?? registeredArguments.at(-1)
    if (index !== -1) throw new CodedError('USAGE', `The argument '${empty?.name() ?? ''}' is empty.`)
  })
  prepare(program, io)
  return program
}

/** Makes every command throw instead of ending the process; {@link run} writes errors. */
function prepare(command: Command, io: Io): void {
  command.exitOverride().configureOutput({
    writeOut: (text) => io.stdout.write(text),
    writeErr: () => undefined,
    outputError: () => undefined,
  })
  command.configureHelp({ minWidthToWrap: WRAPPED_MIN_CHARACTERS })
  command.helpOption('-h, --help', 'show this help')
  if (command.commands.length === 0) takeDashedIds(command)
  else if (command.parent !== null) command.helpCommand('help [command]', 'show the help of a command')
  for (const option of command.options) {
    if (isSingle(option)) refuseRepeats(command, option)
    if (!MAY_BE_EMPTY.has(option.long ?? '')) refuseEmpty(command, option)
  }
  for (const each of command.commands) prepare(each, io)
}

/** An empty series: rate tables without one. */
const MAY_BE_EMPTY = new Set(['--series'])

/** It is mostly a shell variable that is not set. */
function refuseEmpty(command: Command, option: Option): void {
  command.on(`option:${option.name()}`, (value: unknown) => {
    if (value === '') throw new CodedError('USAGE', `${option.long ?? option.flags} is empty.`)
  })
}

/** Otherwise the last value would count, and the others would be ignored. */
function refuseRepeats(command: Command, option: Option): void {
  let isGiven = false
  command.on(`option:${option.name()}`, () => {
    if (isGiven) throw new CodedError('USAGE', `Give ${option.long ?? option.flags} only once.`)
    isGiven = true
  })
}

/** Of `help`, which commander understands for one word only. @throws CodedError USAGE for an unknown command */
function named(program: Command, words: readonly string[]): Command {
  let command = program
  for (const word of words.filter((each) => !each.startsWith('-'))) {
    // `help help` is the help of the command above.
    if (word === 'help') return command
    const below = command.commands.find((each) => each.name() === word)
    if (below === undefined) throw new CodedError('USAGE', `unknown command '${word}'`)
    command = below
  }
  return command
}

/** The innermost command that the arguments name. */
function calledBy(program: Command, args: readonly string[]): Command {
  let command = program
  for (const arg of args) command = command.commands.find((each) => each.name() === arg) ?? command
  return command
}

function wordsOf(command: Command): string {
  return command.parent === null ? command.name() : `${wordsOf(command.parent)} ${command.name()}`
}

function asCoded(error: unknown, called: Command, args: readonly string[]): CodedError {
  if (error instanceof CodedError) return error
  if (error instanceof CommanderError) {
    const message = error.message
      .replace(/^error: /, '')
      .replace(/^command-argument value ('.*') is invalid for argument '(.*?)'\./s, "argument '$2' $1 is invalid.")
      .replaceAll(/\s*\n\s*/g, ' ')
    return new CodedError('USAGE', message === '(outputHelp)' ? noCommandMessage(called, args) : message)
  }
  return new CodedError('INTERNAL', messageOf(error), { cause: error })
}

/** Commander has no message for `help nope`. */
function noCommandMessage(called: Command, args: readonly string[]): string {
  const word = args[args.indexOf('help') + 1]
  if (args.includes('help') && word !== undefined) return `unknown command '${word}'`
  return `Specify a command: ${called.commands.map((each) => each.name()).join(', ')}.`
}

function line(error: CodedError, called: Command): string {
  const { code, message } = error
  const sentence = /[.?!)]$/.test(message) ? message : `${message}.`
  const remedy = code === 'USAGE' ? `See ${wordsOf(called)} --help.` : withWait(remedyOf(error, called), error.details)
  return `tallygate: ${code}: ${sentence} ${remedy}`.replaceAll(/\s*\n\s*/g, ' ').trimEnd()
}

function remedyOf(error: CodedError, called: Command): string {
  const { code, details } = error
  const { remedy, list = listOf(error, called) } = details
  if (typeof remedy === 'string') return remedy
  if (typeof list === 'string') return `${list} shows those that exist.`
  return remedyAfter(code)
}

/** The command that lists what the service does not have. */
function listOf({ code, message }: CodedError, called: Command): string | undefined {
  const [, missing = ''] = /^There is no ([a-z]+(?: item| table)?)\b/.exec(message) ?? []
  const lists = /^tallygate (access|session)\b/.test(wordsOf(called)) ? LISTS_OF_AGENT : LISTS_OF_CLOUD
  if (code !== 'NOT_FOUND' || !Object.hasOwn(lists, missing)) return undefined
  return `tallygate ${lists[missing]}`
}

const LISTS_OF_AGENT: Readonly<Record<string, string>> = { instance: 'offers', session: 'session list' }
const LISTS_OF_CLOUD: Readonly<Record<string, string>> = {
  condition: 'conditions list',
  device: 'devices list',
  event: 'events list',
  instance: 'instances list',
  'line item': 'line-items list',
  'rate table': 'rate-tables list',
  session: 'sessions list',
  sink: 'events sinks',
}

const ARGUMENT_SHOWN_MAX = 200

function withShortArguments(message: string, args: readonly string[]): string {
  const values = args.flatMap((arg) => [arg, arg.slice(arg.indexOf('=') + 1)])
  const long = values.filter(({ length }) => length > ARGUMENT_SHOWN_MAX)
  return long.reduce((text, arg) => text.replaceAll(arg, () => `${arg.slice(0, ARGUMENT_SHOWN_MAX)}…`), message)
}

/** A user does not see the header that remedies name. */
function withWait(remedy: string, { retryAfterMs }: CodedError['details']): string {
  if (typeof retryAfterMs !== 'number') return remedy
  const wait = `${Math.ceil(retryAfterMs / 1_000)} s`
  const named = remedy.replace('for the time in Retry-After', wait)
  return named === remedy ? `${remedy} Try again in ${wait}.` : named
}

/** Key ids (base64url) can begin with a dash, and are arguments. Options have no upper-case letters or digits. */
function isDashedId(word: string): boolean {
  return /^-[\w-]{42}$/.test(word) && /[A-Z0-9]/.test(word)
}

function takeDashedIds(command: Command): void {
  const parse = command.parseOptions.bind(command)
  command.parseOptions = (words) => {
    const { operands, unknown } = parse(words)
    // commander reports everything after the first unknown word as unknown, including arguments and `--`.
    const end = unknown.includes('--') ? unknown.indexOf('--') : unknown.length
    const before = unknown.slice(0, end)
    const strange = before.filter((word) => word.startsWith('-') && !isDashedId(word))
    if (strange.length > 0) return { operands, unknown: strange }
    return { operands: [...operands, ...before, ...unknown.slice(end + 1)], unknown: [] }
  }
}
