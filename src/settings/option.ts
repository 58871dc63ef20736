/** Each setting's TOML key, environment variable, flag, help, documentation and type come from one table entry. */
import type { z } from 'zod'
import { firstProblem } from '../protocol/errors.ts'
import { BYTES, DURATION, type Quantity } from './quantity.ts'

export interface Option<T> {
  readonly isOption: true
  readonly help: string
  /** Accepted values; completes the sentence "Takes ...". */
  readonly takes: string
  /** The same for error messages. May add a rule that the documentation states once for all such settings. */
  readonly expects: string
  readonly default: T
  /** The default as an operator writes it; null: none. */
  readonly defaultText: string | null
  /** Set by a file (`..._file`) or the environment only; never shown. */
  readonly secret: boolean
  /** Whether a reload applies changes. `between values`: a change from one value to another, not to or from none. */
  readonly reloadable: boolean | 'between values'
  /** Undefined: invalid. @param source of a secret: see {@link Secret.source} */
  readonly fromText: (text: string, source: string) => T | undefined
  readonly fromToml: (value: unknown) => T | undefined
  /** Names the part of a structure that is wrong. Null: the value as a whole is. */
  readonly wrongPart: (value: unknown, where: string) => string | null
  /** The value of an optional secret whose file is missing or empty. Undefined: the secret is not optional. */
  readonly absent?: (path: string) => T
}

export interface OptionTree {
  readonly [key: string]: Option<unknown> | OptionTree
}

export type Settings<T> = {
  readonly [K in keyof T]: T[K] extends Option<infer V> ? V : Settings<T[K]>
}

export interface OptionTable<T extends OptionTree> {
  /** Prefix of the environment variables, such as `TALLYGATE_AGENT`. */
  readonly envPrefix: string
  readonly options: T
}

/** A secret that prints as `[secret]` when logged, joined or serialized. */
export class Secret {
  /** Path of the file, or name of the environment variable, that contains it. */
  readonly source: string
  readonly #value: string

  constructor(value: string, source: string) {
    this.#value = value
    this.source = source
  }

  reveal(): string {
    return this.#value
  }

  toString(): string {
    return '[secret]'
  }

  toJSON(): string {
    return '[secret]'
  }
}

/** An optional secret that is not set: its file is missing or empty. */
export interface AbsentSecret {
  /** Path of the file. */
  readonly source: string
}

interface OptionDescription<T> {
  readonly help: string
  /** Null: the setting may be omitted and is null then. */
  readonly default: T
  /** Reloadable: the setting is read at each use. */
  readonly reloadable?: true | 'between values'
}

/** Text of `min` (default 1) to `max` (default 1000) characters without control characters. */
export function text<const T extends string | null>(
  description: OptionDescription<T> & { readonly min?: number; readonly max?: number; readonly takes?: string },
): Option<string | Extract<T, null>> {
  const { min = 1, max = 1_000 } = description
  return ofText(description, description.takes ?? `text of ${min} to ${max} characters`, (given) =>
    // oxlint-disable-next-line no-control-regex -- control characters are what this refuses
    given.length >= min && given.length <= max && !/[\u0000-\u001f\u007f]/.test(given) ? given : undefined,
  )
}

export function path<const T extends string | null>(
  description: OptionDescription<T>,
): Option<string | Extract<T, null>> {
  return ofText(
    description,
    'a path',
    (given) =>
      // SQLite's binding removes spaces around the name of a file, so a database would be in another directory.
      given === '' || given !== given.trim() || given.includes('\u0000') ? undefined : given,
    'a path without spaces around it',
  )
}

export function url<const T extends string | null>(
  description: OptionDescription<T> & {
    readonly schemes: readonly string[]
    /** Whether it may name several: `host:port,host:port`. */
    readonly hosts?: 'several'
  },
): Option<string | Extract<T, null>> {
  return ofText(
    description,
    `a URL that begins with ${list(description.schemes.map((scheme) => `${scheme}://`))}`,
    (given) =>
      URL.canParse(description.hosts === 'several' ? withOneHost(given) : given) &&
      description.schemes.some((scheme) => given.startsWith(`${scheme}://`))
        ? given
        : undefined,
  )
}

const withOneHost = (given: string): string => given.replace(/^([^/]+:\/\/(?:[^/?#]*@)?[^/?#,]+),[^/?#]*/, '$1')

export function choice<const V extends string, const T extends V | null>(
  words: readonly V[],
  description: OptionDescription<T>,
): Option<V | Extract<T, null>> {
  return ofText(description, list(words), (given) => words.find((word) => word === given))
}

/** Several words: a list in TOML, separated by commas elsewhere. */
export function words<const V extends string>(
  known: readonly V[],
  description: OptionDescription<readonly V[]>,
): Option<readonly V[]> {
  const parse = (given: readonly unknown[]) => {
    const found = known.filter((word) => given.includes(word))
    return found.length > 0 && found.length === given.length ? found : undefined
  }
  return option(description, {
    takes: `a list of ${list(known, 'and')}, without repetitions: an array in the file, separated by commas elsewhere`,
    show: (value) => value.join(','),
    fromText: (given) => parse(given.split(',')),
    fromToml: (given) => (Array.isArray(given) ? parse(given) : undefined),
  })
}

/** Structure that fits a schema: TOML in the file, JSON elsewhere. Null if not set. */
export function structure<T>(
  schema: z.ZodType<T>,
  description: Omit<OptionDescription<null>, 'default'> & { readonly takes: string },
): Option<T | null> {
  const parse = (given: unknown) => schema.safeParse(given).data
  return option<T, null>(
    { ...description, default: null },
    {
      takes: `${description.takes}: TOML in the file, JSON elsewhere`,
      show: (value) => JSON.stringify(value),
      fromText: (given) => parse(jsonOf(given)),
      fromToml: parse,
      wrongPart: (given, where) => {
        const { error } = schema.safeParse(typeof given === 'string' ? jsonOf(given) : given)
        const isNamed = error?.issues.some(({ path, code }) => path.length > 0 || code === 'custom') ?? false
        return error !== undefined && isNamed ? firstProblem(error, where) : null
      },
    },
  )
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

export function integer<const T extends number | null>(
  description: OptionDescription<T> & { readonly min: number; readonly max: number; readonly unit?: string },
): Option<number | Extract<T, null>> {
  const { min, max, unit } = description
  const inRange = (given: number) => (Number.isSafeInteger(given) && given >= min && given <= max ? given : undefined)
  return option(description, {
    takes: `a whole number from ${min} to ${max}${unit === undefined ? '' : `, in ${unit}`}`,
    show: String,
    fromText: (given) => (/^-?\d{1,16}$/.test(given) ? inRange(Number(given)) : undefined),
    fromToml: (given) => (typeof given === 'number' ? inRange(given) : undefined),
  })
}

type RangeDescription = OptionDescription<string> & { readonly min: string; readonly max: string }

/** Duration: ms in code; text with unit in settings, and in `default`, `min` and `max`. */
export function duration(description: RangeDescription): Option<number> {
  return ofQuantity(description, 'a duration', DURATION)
}

/** Size: bytes in code; text with unit in settings, and in `default`, `min` and `max`. */
export function bytes(description: RangeDescription): Option<number> {
  return ofQuantity(description, 'a size', BYTES)
}

export function toggle(description: OptionDescription<boolean>): Option<boolean> {
  return option(description, {
    takes: 'true or false',
    show: String,
    fromText: (given) => (given === 'true' ? true : given === 'false' ? false : undefined),
    fromToml: (given) => (typeof given === 'boolean' ? given : undefined),
  })
}

interface SecretDescription {
  readonly help: string
  readonly reloadable?: true
}

/** Key and flag name a file; the environment names one (`..._FILE`) or contains the secret, which is trimmed. */
export function secret({ help, reloadable }: SecretDescription): Option<Secret | null> {
  return { ...SECRET, help, reloadable: reloadable === true, default: null, defaultText: null }
}

/** A secret whose file may be missing or empty. @param description `file`: used if it can be read and nothing else is set */
export function optionalSecret({
  help,
  reloadable,
  file,
}: SecretDescription & { readonly file: string }): Option<Secret | AbsentSecret> {
  const absent = (source: string): AbsentSecret => ({ source })
  return { ...SECRET, help, reloadable: reloadable === true, default: absent(file), defaultText: file, absent }
}

const SECRET = {
  isOption: true,
  takes: 'the path of a file that contains the secret',
  expects: 'a text that is not empty',
  secret: true,
  fromText: (given: string, source: string) => (given.trim() === '' ? undefined : new Secret(given.trim(), source)),
  fromToml: () => undefined,
  wrongPart: () => null,
} as const

export interface NamedOption {
  readonly path: readonly string[]
  /** TOML key, such as `limits.body_max`. */
  readonly key: string
  readonly env: string
  readonly flag: string
  readonly option: Option<unknown>
}

export function namedOptions(table: OptionTable<OptionTree>): readonly NamedOption[] {
  const walk = (tree: OptionTree, above: readonly string[]): NamedOption[] =>
    Object.entries(tree).flatMap(([key, node]) => {
      const here = [...above, key]
      return isOption(node) ? [named(table.envPrefix, here, node)] : walk(node, here)
    })
  return walk(table.options, [])
}

/** @param path of an option */
export function valueAt(settings: unknown, path: readonly string[]): unknown {
  return path.reduce<unknown>((node, key) => (node as Record<string, unknown>)[key], settings)
}

/** Default settings file: `/etc/tallygate/agent.toml` for `TALLYGATE_AGENT`. */
export function usualFile(table: Pick<OptionTable<OptionTree>, 'envPrefix'>): string {
  return `/etc/${table.envPrefix.toLowerCase().replaceAll('_', '/')}.toml`
}

function isOption(node: Option<unknown> | OptionTree): node is Option<unknown> {
  return node.isOption === true
}

function named(envPrefix: string, path: readonly string[], option: Option<unknown>): NamedOption {
  const words = path.map((key) => key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`))
  const suffix = option.secret ? '_file' : ''
  return {
    path,
    option,
    key: words.join('.') + suffix,
    env: `${envPrefix}_${words.join('_').toUpperCase()}${suffix.toUpperCase()}`,
    flag: (words.join('-') + suffix).replaceAll('_', '-'),
  }
}

interface Kind<T> {
  readonly takes: string
  /** Default: what it takes. */
  readonly expects?: string
  readonly show: (value: T) => string
  readonly fromText: (text: string) => T | undefined
  readonly fromToml: (value: unknown) => T | undefined
  /** Default: no parts. */
  readonly wrongPart?: Option<T>['wrongPart']
}

function option<T, D extends T | null>(
  { help, default: fallback, reloadable }: OptionDescription<D>,
  { show, ...kind }: Kind<T>,
): Option<T | Extract<D, null>> {
  const defaultText = fallback === null ? null : show(fallback)
  if (defaultText !== null && kind.fromText(defaultText) === undefined) {
    throw new RangeError(`the default ${defaultText} is not ${kind.takes}`)
  }
  return {
    isOption: true,
    help,
    default: fallback as T | Extract<D, null>,
    defaultText,
    secret: false,
    reloadable: reloadable ?? false,
    expects: kind.takes,
    wrongPart: () => null,
    ...kind,
  }
}

function ofText<V extends string, D extends V | null>(
  description: OptionDescription<D>,
  takes: string,
  parse: (text: string) => V | undefined,
  expects = takes,
): Option<V | Extract<D, null>> {
  return option<V, D>(description, {
    takes,
    expects,
    show: String,
    fromText: parse,
    fromToml: (given) => (typeof given === 'string' ? parse(given) : undefined),
  })
}

function ofQuantity(description: RangeDescription, kind: string, unit: Quantity): Option<number> {
  const known = (given: string): number => {
    const amount = unit.parse(given)
    if (amount === undefined) throw new RangeError(`${given} has no unit that an operator could write`)
    return amount
  }
  const [min, max] = [known(description.min), known(description.max)]
  const parse = (given: string) => {
    const amount = unit.parse(given)
    return amount !== undefined && amount >= min && amount <= max ? amount : undefined
  }
  return option(
    { ...description, default: known(description.default) },
    {
      takes: `${kind} from "${description.min}" to "${description.max}"`,
      show: unit.format,
      fromText: parse,
      fromToml: (given) => (typeof given === 'string' ? parse(given) : undefined),
    },
  )
}

function list(known: readonly string[], conjunction = 'or'): string {
  const quoted = known.map((word) => (word.includes('://') ? word : `"${word}"`))
  return quoted.length < 2 ? quoted.join('') : `${quoted.slice(0, -1).join(', ')} ${conjunction} ${quoted.at(-1) ?? ''}`
}
