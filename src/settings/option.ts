/**
 * One table of options drives everything about a setting: its key in the TOML file, its environment variable, its flag,
 * `--help`, the generated page of the documentation, and the type of the loaded value. A side writes its table as a
 * nested object with camelCase keys; every other name is derived from those keys.
 */
import { formatBytes, formatDuration, parseBytes, parseDuration } from './quantity.ts'

export interface Option<T> {
  readonly isOption: true
  /** One sentence for the operator: what it does, and when to change it. */
  readonly help: string
  /** What the setting takes, in words: completes the sentence "It takes ...". */
  readonly takes: string
  readonly default: T
  /** The default as an operator would write it; null where there is none. */
  readonly defaultText: string | null
  /** Given by a file (`..._file`) or the environment, never by the settings file or a flag; never shown. */
  readonly secret: boolean
  /**
   * A running service takes a change of it over when it is told to reload. `between values`: from one value to another, not
   * between a value and none.
   */
  readonly reloadable: boolean | 'between values'
  /** From the environment or a flag. Undefined: not what the option takes. */
  readonly fromText: (text: string) => T | undefined
  /** From a TOML value. Undefined: not what the option takes. */
  readonly fromToml: (value: unknown) => T | undefined
}

export interface OptionTree {
  readonly [key: string]: Option<unknown> | OptionTree
}

/** What a tree of options loads into. */
export type Settings<T> = {
  readonly [K in keyof T]: T[K] extends Option<infer V> ? V : Settings<T[K]>
}

export interface OptionTable<T extends OptionTree> {
  /** Of the environment variables: `TALLYGATE_AGENT`. */
  readonly envPrefix: string
  readonly options: T
}

/** A secret that shows itself only when asked to: logging, joining or serializing it gives `[secret]`. */
export class Secret {
  readonly #value: string

  constructor(value: string) {
    this.#value = value
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

interface Facts<T> {
  readonly help: string
  /** Null: the setting may be left out and is null then. */
  readonly default: T
  /** Read anew each time it is used, so that a reload can change it. */
  readonly reloadable?: true | 'between values'
}

/** Any text from `min` (default 1) to `max` (default 1000) characters, without control characters. */
export function text<const T extends string | null>(
  facts: Facts<T> & { readonly min?: number; readonly max?: number; readonly takes?: string },
): Option<string | Extract<T, null>> {
  const { min = 1, max = 1_000 } = facts
  return ofText(facts, facts.takes ?? `text of ${min} to ${max} characters`, (given) =>
    // oxlint-disable-next-line no-control-regex -- control characters are what this refuses
    given.length >= min && given.length <= max && !/[\u0000-\u001f\u007f]/.test(given) ? given : undefined,
  )
}

/** A path in the file system; a relative one counts from the working directory of the process. */
export function path<const T extends string | null>(facts: Facts<T>): Option<string | Extract<T, null>> {
  return ofText(facts, 'a path', (given) => (given === '' || given.includes('\u0000') ? undefined : given))
}

/** An absolute URL of one of the schemes (without colon). */
export function url<const T extends string | null>(
  facts: Facts<T> & { readonly schemes: readonly string[] },
): Option<string | Extract<T, null>> {
  return ofText(facts, `a URL that begins with ${list(facts.schemes.map((scheme) => `${scheme}://`))}`, (given) =>
    URL.canParse(given) && facts.schemes.some((scheme) => given.startsWith(`${scheme}://`)) ? given : undefined,
  )
}

/** One of a few words. */
export function choice<const V extends string, const T extends V | null>(
  words: readonly V[],
  facts: Facts<T>,
): Option<V | Extract<T, null>> {
  return ofText(facts, list(words), (given) => words.find((word) => word === given))
}

/** A whole number of `unit` (plural noun). */
export function integer<const T extends number | null>(
  facts: Facts<T> & { readonly min: number; readonly max: number; readonly unit?: string },
): Option<number | Extract<T, null>> {
  const { min, max, unit } = facts
  const inRange = (given: number) => (Number.isSafeInteger(given) && given >= min && given <= max ? given : undefined)
  return option(facts, {
    takes: `a whole number from ${min} to ${max}${unit === undefined ? '' : `, in ${unit}`}`,
    show: String,
    fromText: (given) => (/^-?\d{1,16}$/.test(given) ? inRange(Number(given)) : undefined),
    fromToml: (given) => (typeof given === 'number' ? inRange(given) : undefined),
  })
}

/** A length of time, in milliseconds inside and written with its unit outside: `default`, `min` and `max` too. */
export function duration(facts: Facts<string> & { readonly min: string; readonly max: string }): Option<number> {
  return ofQuantity(facts, `a duration from "${facts.min}" to "${facts.max}"`, {
    parse: parseDuration,
    format: formatDuration,
  })
}

/** A size, in bytes inside and written with its unit outside: `default`, `min` and `max` too. */
export function bytes(facts: Facts<string> & { readonly min: string; readonly max: string }): Option<number> {
  return ofQuantity(facts, `a size from "${facts.min}" to "${facts.max}"`, {
    parse: parseBytes,
    format: formatBytes,
  })
}

/** On or off. */
export function toggle(facts: Facts<boolean>): Option<boolean> {
  return option(facts, {
    takes: 'true or false',
    show: String,
    fromText: (given) => (given === 'true' ? true : given === 'false' ? false : undefined),
    fromToml: (given) => (typeof given === 'boolean' ? given : undefined),
  })
}

/**
 * A secret. The file and the flag name a file that holds it (key `token` becomes `token_file` and `--token-file`); the
 * environment names such a file (`..._TOKEN_FILE`) or holds the secret itself (`..._TOKEN`). Surrounding white space is
 * cut off. Null when none is given.
 */
export function secret(facts: { readonly help: string; readonly reloadable?: true }): Option<Secret | null> {
  const parse = (given: unknown) =>
    typeof given === 'string' && given.trim() !== '' ? new Secret(given.trim()) : undefined
  return {
    isOption: true,
    help: facts.help,
    takes: 'the path of a file that holds the secret',
    default: null,
    defaultText: null,
    secret: true,
    reloadable: facts.reloadable === true,
    fromText: parse,
    fromToml: parse,
  }
}

export interface OptionName {
  /** Path in the tree: `['limits', 'bodyMax']`. */
  readonly path: readonly string[]
  /** As messages and the documentation write it, and as it stands in the file: `limits.body_max`. */
  readonly key: string
  /** `TALLYGATE_AGENT_LIMITS_BODY_MAX` */
  readonly env: string
  /** Without dashes: `limits-body-max`. */
  readonly flag: string
}

export interface NamedOption extends OptionName {
  readonly option: Option<unknown>
}

/** The options of a table in the order in which it lists them, with all their names. */
export function namedOptions(table: OptionTable<OptionTree>): readonly NamedOption[] {
  const walk = (tree: OptionTree, above: readonly string[]): NamedOption[] =>
    Object.entries(tree).flatMap(([key, node]) => {
      const here = [...above, key]
      return isOption(node) ? [{ ...namesOf(table.envPrefix, here, node.secret), option: node }] : walk(node, here)
    })
  return walk(table.options, [])
}

/** Where a settings file is looked for when none is named: `/etc/tallygate/agent.toml` for `TALLYGATE_AGENT`. */
export function usualFile(table: Pick<OptionTable<OptionTree>, 'envPrefix'>): string {
  return `/etc/${table.envPrefix.toLowerCase().replaceAll('_', '/')}.toml`
}

function isOption(node: Option<unknown> | OptionTree): node is Option<unknown> {
  return node.isOption === true
}

function namesOf(envPrefix: string, path: readonly string[], isSecret: boolean): OptionName {
  const words = path.map((key) => key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`))
  const suffix = isSecret ? '_file' : ''
  return {
    path,
    key: words.join('.') + suffix,
    env: `${envPrefix}_${words.join('_').toUpperCase()}${suffix.toUpperCase()}`,
    flag: (words.join('-') + suffix).replaceAll('_', '-'),
  }
}

interface Kind<T> {
  readonly takes: string
  readonly show: (value: T) => string
  readonly fromText: (text: string) => T | undefined
  readonly fromToml: (value: unknown) => T | undefined
}

function option<T, D extends T | null>(facts: Facts<D>, kind: Kind<T>): Option<T | Extract<D, null>> {
  const shown = facts.default === null ? null : kind.show(facts.default)
  if (shown !== null && kind.fromText(shown) === undefined) {
    throw new RangeError(`the default ${shown} is not ${kind.takes}`)
  }
  return {
    isOption: true,
    help: facts.help,
    takes: kind.takes,
    default: facts.default as T | Extract<D, null>,
    defaultText: shown,
    secret: false,
    reloadable: facts.reloadable ?? false,
    fromText: kind.fromText,
    fromToml: kind.fromToml,
  }
}

function ofText<V extends string, D extends V | null>(
  facts: Facts<D>,
  takes: string,
  parse: (text: string) => V | undefined,
): Option<V | Extract<D, null>> {
  return option<V, D>(facts, {
    takes,
    show: String,
    fromText: parse,
    fromToml: (given) => (typeof given === 'string' ? parse(given) : undefined),
  })
}

function ofQuantity(
  facts: Facts<string> & { readonly min: string; readonly max: string },
  takes: string,
  unit: { readonly parse: (text: string) => number | undefined; readonly format: (amount: number) => string },
): Option<number> {
  const known = (given: string): number => {
    const amount = unit.parse(given)
    if (amount === undefined) throw new RangeError(`${given} has no unit that an operator could write`)
    return amount
  }
  const [min, max] = [known(facts.min), known(facts.max)]
  const parse = (given: string) => {
    const amount = unit.parse(given)
    return amount !== undefined && amount >= min && amount <= max ? amount : undefined
  }
  return option(
    { ...facts, default: known(facts.default) },
    {
      takes,
      show: unit.format,
      fromText: parse,
      fromToml: (given) => (typeof given === 'string' ? parse(given) : undefined),
    },
  )
}

function list(words: readonly string[]): string {
  const quoted = words.map((word) => (word.includes('://') ? word : `"${word}"`))
  return quoted.length < 2 ? quoted.join('') : `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1) ?? ''}`
}
