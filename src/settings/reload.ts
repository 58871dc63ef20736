/** Reloads settings in a running service, all or nothing: on an error, the running settings stay in force. */
import { CodedError, type ErrorCode } from '../protocol/errors.ts'
import type { Log } from '../protocol/log.ts'
import {
  type NamedOption,
  type OptionTable,
  type OptionTree,
  type Settings,
  Secret,
  namedOptions,
  valueAt,
} from './option.ts'

export interface ReloadNotice {
  readonly code: Extract<ErrorCode, 'CONFIG_NOT_RELOADED' | 'CONFIG_NEEDS_RESTART'>
  readonly message: string
  readonly since: number
}

export interface ReloadDeps<T extends OptionTree> {
  readonly table: OptionTable<T>
  readonly settings: Settings<T>
  /** Validates `next` and returns a function that applies it. @throws CodedError if it cannot be used */
  readonly prepare: (next: Settings<T>) => () => void
  /** Contents of the files that a reload reads again, by the key of their setting. @throws CodedError */
  readonly files?: (settings: Settings<T>) => Readonly<Record<string, string>>
  /** Contents of the files that only a start reads, by the key of their setting. @throws CodedError */
  readonly startFiles?: (settings: Settings<T>) => Readonly<Record<string, string>>
  readonly log: Pick<Log, 'info' | 'error'>
  readonly now: () => number
}

export class LiveSettings<T extends OptionTree> {
  /** Current settings: each property is read at access, so do not keep values. */
  readonly view: Settings<T>
  readonly #deps: ReloadDeps<T>
  readonly #named: readonly NamedOption[]
  #inForce: Settings<T>
  #files: Readonly<Record<string, string>>
  readonly #startFiles: Readonly<Record<string, string>>
  #notice: ReloadNotice | null = null

  constructor(deps: ReloadDeps<T>) {
    this.#deps = deps
    this.#named = namedOptions(deps.table)
    this.#inForce = deps.settings
    this.#files = deps.files?.(deps.settings) ?? {}
    this.#startFiles = deps.startFiles?.(deps.settings) ?? {}
    this.view = viewOf(deps.table.options, (path) => valueAt(this.#inForce, path)) as Settings<T>
  }

  /** An error of the last reload, or settings that wait for a restart; null: none. */
  get notice(): ReloadNotice | null {
    return this.#notice
  }

  /** Logs and reports CodedErrors of `load`, which reads all sources again. */
  reload(load: () => Settings<T>): void {
    const { prepare, files, startFiles, log, now } = this.#deps
    try {
      const fresh = load()
      const changed = this.#named.filter(({ path }) => !isSame(valueAt(fresh, path), valueAt(this.#inForce, path)))
      const live = changed.filter((each) => isLive(each, this.#inForce, fresh))
      const atStart = startFiles?.(fresh) ?? {}
      const isOther = (each: NamedOption) => changed.includes(each) || atStart[each.key] !== this.#startFiles[each.key]
      const waiting = this.#named.filter((each) => isOther(each) && !live.includes(each)).map(({ key }) => key)
      const next = merged(this.#inForce, fresh, live)
      const contents = files?.(next) ?? {}
      const apply = prepare(next)
      const taken = this.#named.filter((each) => live.includes(each) || contents[each.key] !== this.#files[each.key])
      this.#inForce = next
      this.#files = contents
      apply()
      const restart = `These settings changed but need a restart: ${waiting.join(', ')}.`
      this.#notice = waiting.length === 0 ? null : this.#noticeOf('CONFIG_NEEDS_RESTART', restart, now())
      log.info({ changed: taken.map(({ key }) => key), needRestart: waiting }, 'settings reloaded')
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      const message = `The settings were not reloaded; the previous ones stay in force: ${error.message}`
      this.#notice = this.#noticeOf('CONFIG_NOT_RELOADED', message, now())
      log.error({ code: 'CONFIG_NOT_RELOADED', cause: error.code, reason: error.message }, 'settings not reloaded')
    }
  }

  #noticeOf(code: ReloadNotice['code'], message: string, now: number): ReloadNotice {
    return { code, message, since: this.#notice?.code === code ? this.#notice.since : now }
  }
}

/** An object shaped like the table whose leaves are read at access. */
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

function isLive({ option: { reloadable }, path }: NamedOption, from: unknown, to: unknown): boolean {
  if (reloadable !== 'between values') return reloadable
  return valueAt(from, path) !== null && valueAt(to, path) !== null
}

function isSame(one: unknown, other: unknown): boolean {
  if (one instanceof Secret && other instanceof Secret) return one.reveal() === other.reveal()
  return one === other || (typeof one === 'object' && JSON.stringify(one) === JSON.stringify(other))
}

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
  if (typeof node !== 'object' || node === null || node instanceof Secret || Array.isArray(node)) return node
  return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, copyOf(value)]))
}
