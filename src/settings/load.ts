/** Loads settings: flag, else environment, else file, else default. Unknown keys are errors. Errors show no secret. */
import { parse as parseToml, TomlError } from 'smol-toml'
import { CodedError } from '../protocol/errors.ts'
import { shownPath, systemFailure, unreadableSetting } from '../protocol/file-reasons.ts'
import { nearest } from './nearest.ts'
import { type NamedOption, namedOptions, type OptionTable, type OptionTree, type Settings } from './option.ts'

export interface Sources {
  readonly file: string | null
  readonly env: Readonly<Record<string, string | undefined>>
  /** By flag name: `{ 'socket-path': '/run/x.sock' }`. */
  readonly flags: Readonly<Record<string, string>>
  readonly readText: (path: string, allowed: 'FILES') => string
  /** The whole table, if only a part of it is loaded: other settings may be wrong, or not for this user to read. */
  readonly whole?: OptionTable<OptionTree>
}

/** @throws CodedError CONFIG_UNREADABLE or CONFIG_INVALID */
export function loadSettings<T extends OptionTree>(table: OptionTable<T>, sources: Sources): Settings<T> {
  const named = namedOptions(table)
  if (sources.file === '')
    throw invalid(
      `The path of the settings file is empty: set ${table.envPrefix}_CONFIG or --config to one, or omit both.`,
    )
  const { file: path } = sources
  const isPart = sources.whole !== undefined
  const file = path === null ? undefined : foundIn(readToml(path, sources.readText), path, named, isPart)
  refuseUnknownVariables(table, sources.whole === undefined ? named : namedOptions(sources.whole), sources.env)

  const settings: Record<string, unknown> = {}
  for (const one of named) place(settings, one.path, settingOf(one, file, sources))
  return settings as Settings<T>
}

/** Each setting that is valid, and the defaults of the others. */
export function usableSettings<T extends OptionTree>(table: OptionTable<T>, sources: Sources): Settings<T> {
  const { file: path } = sources
  const toml = path === null ? undefined : usable(undefined, () => readToml(path, sources.readText))
  const settings: Record<string, unknown> = {}
  for (const one of namedOptions(table)) {
    const find = () => (path === null || toml === undefined ? undefined : foundIn(toml, path, [one], true))
    const file = usable(undefined, find)
    const value = usable(one.option.default, () => settingOf(one, file, sources))
    place(settings, one.path, value)
  }
  return settings as Settings<T>
}

function usable<T>(otherwise: T, load: () => T): T {
  try {
    return load()
  } catch {
    return otherwise
  }
}

function settingOf(one: NamedOption, file: ReadonlyMap<string, Found> | undefined, sources: Sources): unknown {
  const found =
    fromFlag(one, sources.flags) ?? fromEnvironment(one, sources.env) ?? file?.get(one.key) ?? presentFile(one, sources)
  return found === undefined ? one.option.default : valueOf(one, found, sources.readText)
}

interface Found {
  /** Source for messages: `/etc/tallygate/agent.toml: socket.path`. */
  readonly where: string
  readonly value: unknown
  readonly as: 'text' | 'toml' | 'secret'
}

function fromFlag({ flag }: NamedOption, flags: Sources['flags']): Found | undefined {
  const value = flags[flag]
  return value === undefined ? undefined : { where: `--${flag}`, value, as: 'text' }
}

function fromEnvironment({ env, option }: NamedOption, variables: Sources['env']): Found | undefined {
  const direct = option.secret ? withoutFileSuffix(env) : env
  const value = variables[direct]
  if (value !== undefined) return { where: direct, value, as: option.secret ? 'secret' : 'text' }
  const path = variables[env]
  return path === undefined ? undefined : { where: env, value: path, as: 'text' }
}

/** The default file of a secret, if this user can read it: commands of other users read the same settings. */
function presentFile({ option, key }: NamedOption, { readText }: Sources): Found | undefined {
  if (!option.secret || option.defaultText === null) return undefined
  try {
    if (readText(option.defaultText, 'FILES').trim() === '') return undefined
  } catch {
    return undefined
  }
  return { where: `${key} (default)`, value: option.defaultText, as: 'text' }
}

function withoutFileSuffix(env: string): string {
  return env.replace(/_FILE$/, '')
}

function valueOf({ option }: NamedOption, found: Found, readText: Sources['readText']): unknown {
  const { where, value, as } = found
  if (option.secret && as !== 'secret') {
    if (typeof value !== 'string' || value === '') throw invalid(`${where} is not ${option.takes}.`)
    if (option.absent !== undefined && isAbsent(value, readText)) return option.absent(value)
    const content = option.fromText(read(value, readText, where), value)
    if (content === undefined) throw invalid(`${where}: the file ${value} is empty.`)
    return content
  }
  const parsed = as === 'toml' ? option.fromToml(value) : option.fromText(String(value), where)
  if (parsed !== undefined) return parsed
  const shown = option.secret ? '' : ` is ${shorten(value)}, but`
  throw invalid(`${option.wrongPart(value, where) ?? `${where}${shown} takes ${option.expects}`}.`)
}

/** Whether the file is missing or empty. A value that is no path may be the secret itself. */
function isAbsent(path: string, readText: Sources['readText']): boolean {
  if (shownPath(path) !== path) return false
  try {
    return readText(path, 'FILES').trim() === ''
  } catch (error) {
    return ['ENOENT', 'ENOTDIR'].includes(String((error as NodeJS.ErrnoException).code))
  }
}

type Table = Readonly<Record<string, unknown>>

function readToml(path: string, readText: Sources['readText']): Table {
  const text = read(path, readText)
  try {
    return parseToml(text)
  } catch (error) {
    if (!(error instanceof TomlError)) throw error
    const reason = error.message.split('\n')[0]?.replace(/^Invalid TOML document: /, '') ?? ''
    throw new CodedError('CONFIG_UNREADABLE', `${path}:${error.line}:${error.column}: ${reason}.`)
  }
}

/** @param isPart keys of other settings are no error */
function foundIn(
  toml: Table,
  path: string,
  named: readonly NamedOption[],
  isPart: boolean,
): ReadonlyMap<string, Found> {
  const found = new Map<string, Found>()
  const keys = new Map(named.map((one) => [one.key, one]))
  const walk = (node: Table, above: string): void => {
    for (const [name, value] of Object.entries(node)) {
      const key = above === '' ? name : `${above}.${name}`
      const isAbove = named.some((one) => one.key.startsWith(`${key}.`))
      if (keys.has(key)) found.set(key, { where: `${path}: ${key}`, value, as: 'toml' })
      else if (isAbove && isTable(value)) walk(value, key)
      else if (isAbove) throw invalid(`${path}: ${key} is ${shorten(value)}, but must be a table of settings.`)
      else if (!isPart) throw invalid(`${path}: unknown key ${key}${suggestion(key, keys.keys())}`)
    }
  }
  walk(toml, '')
  return found
}

function isTable(value: unknown): value is Table {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date)
}

/** Such variables are ignored: Kubernetes sets them in every process to announce services. */
const CLUSTER_VARIABLE =
  /_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)=|_PORT=(tcp|udp):\/\//

function refuseUnknownVariables(
  table: OptionTable<OptionTree>,
  named: readonly NamedOption[],
  env: Sources['env'],
): void {
  const known = new Set(named.flatMap((one) => (one.option.secret ? [one.env, withoutFileSuffix(one.env)] : [one.env])))
  known.add(`${table.envPrefix}_CONFIG`)
  for (const [name, value = ''] of Object.entries(env)) {
    if (!name.startsWith(`${table.envPrefix}_`) || known.has(name)) continue
    if (CLUSTER_VARIABLE.test(`${name}=${value}`)) continue
    throw invalid(`unknown environment variable ${name}${suggestion(name, known)}`)
  }
}

function suggestion(word: string, known: Iterable<string>): string {
  const near = nearest(word, known)
  return near === undefined ? '.' : `; did you mean ${near}?`
}

function read(path: string, readText: Sources['readText'], where?: string): string {
  try {
    return readText(path, 'FILES')
  } catch (cause) {
    throw systemFailure(cause, where ?? path) ?? unreadableSetting(cause, path, unreadable(path, where))
  }
}

/** @param where of a secret: a value that is no path may be the secret itself */
function unreadable(path: string, where: string | undefined): string {
  if (where === undefined) return path
  return path.startsWith('/') ? `${where}: ${shownPath(path)}` : `${where} does not name a file that can be read`
}

function place(settings: Record<string, unknown>, path: readonly string[], value: unknown): void {
  const [key = '', ...rest] = path
  if (rest.length === 0) settings[key] = value
  else place((settings[key] ??= {}) as Record<string, unknown>, rest, value)
}

/** Shortens a rejected value for a message and removes credentials of addresses, also of those without a scheme. */
function shorten(value: unknown): string {
  const text =
    value instanceof Date
      ? value.toISOString()
      : JSON.stringify(value, (_, part: unknown) => (typeof part === 'bigint' ? String(part) : part))
  const harmless = text
    .replaceAll(/(:?\/\/|:)(?:\\"|[^"])*@/g, '$1[secret]@')
    .replaceAll(/(password=)[^&"]*/g, '$1[secret]')
  return harmless.length > 80 ? `${harmless.slice(0, 80)}…` : harmless
}

function invalid(message: string): CodedError {
  return new CodedError('CONFIG_INVALID', message)
}
