/**
 * Settings that change while a service runs. The table says which ones may; what is read from the view follows them, and
 * everything else waits for a restart and is named. A reload takes effect as a whole or not at all: sources with anything
 * wrong in them leave the running settings in force, and what is wrong stands until a reload succeeds.
 */
import { CodedError, type ErrorCode } from '../protocol/errors.ts'
import { type NamedOption, type OptionTable, type OptionTree, type Settings, Secret, namedOptions } from './option.ts'

export interface ReloadLog {
  info(fields: Record<string, unknown>, message: string): void
  warn(fields: Record<string, unknown>, message: string): void
  error(fields: Record<string, unknown>, message: string): void
}

/** What somebody should know of the last reload. */
export interface ReloadNotice {
  readonly code: Extract<ErrorCode, 'CONFIG_NOT_RELOADED' | 'CONFIG_NEEDS_RESTART'>
  readonly message: string
  /** POSIX ms. */
  readonly since: number
}

export interface ReloadParts<T extends OptionTree> {
  readonly table: OptionTable<T>
  /** Those that the service starts with. */
  readonly settings: Settings<T>
  /**
   * Checks what only the service can, changing nothing, and returns what brings the rest into force.
   *
   * @param next as they will be in force: what waits for a restart is as it was
   * @throws CodedError for settings that cannot be used
   */
  readonly prepare: (next: Settings<T>) => () => void
  readonly log: ReloadLog
  /** POSIX ms. */
  readonly now: () => number
}

export class LiveSettings<T extends OptionTree> {
  /** As they are in force at the moment of reading: whoever keeps a value keeps that of the moment. */
  readonly view: Settings<T>
  readonly #parts: ReloadParts<T>
  readonly #named: readonly NamedOption[]
  #inForce: Settings<T>
  #notice: ReloadNotice | null = null

  constructor(parts: ReloadParts<T>) {
    this.#parts = parts
    this.#named = namedOptions(parts.table)
    this.#inForce = parts.settings
    this.view = viewOf(parts.table.options, (path) => valueAt(this.#inForce, path)) as Settings<T>
  }

  /** What is wrong with the last reload, or waits for a restart; null for nothing. */
  get notice(): ReloadNotice | null {
    return this.#notice
  }

  /**
   * Brings into force what may change. Never throws a CodedError: what is wrong is logged and stands as the notice.
   *
   * @param load reads all sources again. @throws CodedError
   */
  reload(load: () => Settings<T>): void {
    const { prepare, log, now } = this.#parts
    try {
      const fresh = load()
      const changed = this.#named.filter(({ path }) => !isSame(valueAt(fresh, path), valueAt(this.#inForce, path)))
      const live = changed.filter((each) => isLive(each, this.#inForce, fresh))
      const waiting = changed.filter((each) => !live.includes(each)).map(({ key }) => key)
      const next = merged(this.#inForce, fresh, live)
      const apply = prepare(next)
      this.#inForce = next
      apply()
      this.#notice = waiting.length === 0 ? null : this.#noticeOf('CONFIG_NEEDS_RESTART', needsRestart(waiting), now())
      log.info({ changed: live.map(({ key }) => key), needRestart: waiting }, 'settings reloaded')
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      const message = `The settings were not reloaded, those from before stay in force: ${error.message}`
      this.#notice = this.#noticeOf('CONFIG_NOT_RELOADED', message, now())
      log.error({ code: 'CONFIG_NOT_RELOADED', cause: error.code, reason: error.message }, 'settings not reloaded')
    }
  }

  #noticeOf(code: ReloadNotice['code'], message: string, now: number): ReloadNotice {
    return { code, message, since: this.#notice?.code === code ? this.#notice.since : now }
  }
}

function needsRestart(keys: readonly string[]): string {
  return `Changed settings wait for a restart: ${keys.join(', ')}.`
}

/** An object of the shape of the table whose leaves are read when they are asked for. */
function viewOf(tree: OptionTree, read: (path: readonly string[]) => unknown, above: readonly string[] = []): object {
  const view = {}
  for (const [key, node] of Object.entries(tree)) {
    const path = [...above, key]
    const get = node.isOption === true ? () => read(path) : undefined
    if (get === undefined) Object.assign(view, { [key]: viewOf(node as OptionTree, read, path) })
    else Object.defineProperty(view, key, { get, enumerable: true })
  }
  return view
}

function valueAt(settings: unknown, path: readonly string[]): unknown {
  return path.reduce<unknown>((node, key) => (node as Record<string, unknown>)[key], settings)
}

function isLive({ option: { reloadable }, path }: NamedOption, from: unknown, to: unknown): boolean {
  if (reloadable !== 'between values') return reloadable
  return valueAt(from, path) !== null && valueAt(to, path) !== null
}

function isSame(one: unknown, other: unknown): boolean {
  if (one instanceof Secret && other instanceof Secret) return one.reveal() === other.reveal()
  return one === other
}

/** `base` with the values of `fresh` for the options. */
function merged<T extends OptionTree>(
  base: Settings<T>,
  fresh: Settings<T>,
  options: readonly NamedOption[],
): Settings<T> {
  const result = copyOf(base) as Record<string, unknown>
  for (const { path } of options) {
    const parent = valueAt(result, path.slice(0, -1)) as Record<string, unknown>
    parent[path.at(-1) ?? ''] = valueAt(fresh, path)
  }
  return result as Settings<T>
}

function copyOf(node: unknown): unknown {
  if (typeof node !== 'object' || node === null || node instanceof Secret) return node
  return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, copyOf(value)]))
}
