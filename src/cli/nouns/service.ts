import { z } from 'zod'
import { type Call, queryText } from '../../client/call.ts'
import { numberText, parseRepeatableJson } from '../../client/exact-json.ts'
import { type Answer, HttpClient, refusal } from '../../client/http.ts'
import { CodedError } from '../../protocol/errors.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { type UsageFormat, usageCursor, usageCursorHeader } from '../../protocol/service/usage-export.ts'
import { uuid } from '../../protocol/wire.ts'
import { nearest } from '../../settings/nearest.ts'
import { readCaller } from '../sign-in/caller.ts'
import { firstOf } from './document.ts'

/** An object of the API. Numbers that a double would change are raw JSON. */
export type Row = Readonly<Record<string, unknown>>

interface UsageExportQuery {
  readonly format: UsageFormat
  /** Null: all that the caller may read. */
  readonly instanceId: string | null
  /** POSIX ms. */
  readonly from: number | undefined
  /** POSIX ms, exclusive. */
  readonly to: number | undefined
  /** Cursor of an export. */
  readonly after?: string | undefined
}

export interface ExportedUsage {
  /** Cursor of the next export. */
  readonly next: bigint
  readonly pieces: AsyncIterable<string | Buffer>
}

/** Bodies of refusals that only some operations of the interface have. */
const otherRefusal = z.union([z.object({ message: z.array(z.string()) }), z.object({ error: z.string() })])

const PATH_OF_RULES = /^\/(?:provisioning\/)?api\/v1\.1\/instances\/([^/]+)\//

/** Of each failed attempt, another administrator's change was made. */
const ATTEMPTS_MAX = 20

/** A client of the cloud for an administrator. */
export class Service extends HttpClient {
  /** ETag of the rules of each instance, as this command has first read them, or left them. */
  readonly #rules = new Map<string, string>()

  /** A change of rules that were read is conditional. @throws CodedError RULES_CHANGED and others */
  async send(call: Call): Promise<Answer> {
    const [, instanceId = ''] = PATH_OF_RULES.exec(call.path) ?? []
    const read = this.#rules.get(instanceId)
    const isChange = call.method !== 'GET'
    const condition = isChange && read !== undefined ? { 'if-match': read } : {}
    const answer = await this.call({ ...call, headers: { ...call.headers, ...condition } })
    if (answer.status >= 200 && answer.status < 300) {
      const { etag } = answer.headers
      if (instanceId !== '' && etag !== undefined && (isChange || read === undefined)) this.#rules.set(instanceId, etag)
      return answer
    }
    const other = otherRefusal.safeParse(parseJson(answer.text))
    if (!other.success) throw refusal(call, answer)
    if ('error' in other.data) throw new CodedError('CONFLICT', other.data.error)
    throw new CodedError('BAD_REQUEST', firstOf(other.data.message, false))
  }

  /** Makes a change of rules, and again after reading them again if another administrator has changed them meanwhile. */
  async ofReadRules<T>(change: () => Promise<T>, readAgain: () => Promise<void>): Promise<T> {
    for (let attempts = 1; ; attempts += 1) {
      try {
        return await change()
      } catch (error) {
        const isLate = error instanceof CodedError && error.code === 'RULES_CHANGED'
        if (!isLate || attempts === ATTEMPTS_MAX) throw error
      }
      this.#rules.clear()
      await readAgain()
    }
  }

  async get(path: string): Promise<unknown> {
    const { text } = await this.send({ method: 'GET', path })
    try {
      return parseRepeatableJson(text)
    } catch (cause) {
      throw new CodedError('ANSWER_UNEXPECTED', `The response to GET ${path} is not JSON.`, { cause })
    }
  }

  /** Usage records, oldest first, as they arrive. */
  async exportUsage(query: UsageExportQuery): Promise<ExportedUsage> {
    const call = { method: 'GET', path: `/provisioning/api/v1.1/usage?${queryText({ ...query })}` } as const
    const { headers, pieces } = await this.stream(call)
    const next = usageCursor.safeParse(headers[usageCursorHeader])
    if (!next.success) throw new CodedError('ANSWER_UNEXPECTED', `The response has no header ${usageCursorHeader}.`)
    return { next: next.data, pieces }
  }

  async rows(path: string): Promise<readonly Row[]> {
    return rowsOf(await this.get(path), path)
  }

  /** @param property of a page that has the rows */
  async pages(path: string, property: string): Promise<readonly Row[]> {
    const rows: Row[] = []
    for (let next = '0', isFirst = true; isFirst || next !== '0'; isFirst = false) {
      const answer = await this.get(`${path}${path.includes('?') ? '&' : '?'}next=${next}`)
      const page = (Array.isArray(answer) ? answer[0] : answer) as Row | undefined
      rows.push(...rowsOf(page?.[property], path))
      next = numberText(page?.['next']) ?? '0'
    }
    return rows
  }

  async instances(): Promise<readonly Row[]> {
    const path = '/provisioning/api/v1.1/instances'
    return this.#readable(async (instanceId) =>
      instanceId === null ? this.pages(path, 'content') : [(await this.get(`${path}/${instanceId}`)) as Row],
    )
  }

  async devices(labels: readonly string[] = []): Promise<readonly Row[]> {
    return this.#readable(async (instanceId) => {
      const query = queryText({ labels: labels.length === 0 ? null : labels.join(','), instanceId })
      return this.pages(`/edge/api/v1/devices${query === '' ? '' : `?${query}`}`, 'devices')
    })
  }

  /** A caller that is limited to instances may only name each of them; null lists all. */
  async #readable(list: (instanceId: string | null) => Promise<readonly Row[]>): Promise<readonly Row[]> {
    try {
      return await list(null)
    } catch (error) {
      if (!(error instanceof CodedError) || error.code !== 'INSTANCE_NOT_IN_SCOPE') throw error
    }
    const { rights } = await readCaller(this)
    const rows = new Map<string, Row>()
    for (const id of new Set(rights.flatMap(({ instances }) => instances ?? []))) {
      for (const row of await list(id)) rows.set(String(row['id']), row)
    }
    return [...rows.values()]
  }

  /** @param named an id, a short name, or undefined for the only instance of the cloud */
  async instanceId(named: string | undefined): Promise<string> {
    if (named !== undefined && uuid.safeParse(named).success) return named.toLowerCase()
    const all = await this.instances()
    if (named !== undefined) return idOfNamed(named, all, { one: 'instance', name: 'instances' }, 'shortName')
    const [only, ...others] = all
    if (only !== undefined && others.length === 0) return String(only['id'])
    if (only === undefined)
      throw new CodedError('USAGE', 'The cloud has no instance. Create one with tallygate instances set.')
    const names = all.map((each) => String(each['shortName'])).slice(0, 10)
    throw new CodedError('USAGE', `The cloud has several instances (${names.join(', ')}). Name one with --instance.`)
  }

  /** By id or name; a revoked device only if no other has the name. */
  async deviceId(named: string): Promise<string> {
    if (uuid.safeParse(named).success) return named
    const all = await this.devices()
    const active = all.filter(({ name, revokedAt }) => name === named && revokedAt === null)
    return idOfNamed(named, active.length > 0 ? active : all, { one: 'device', name: 'devices' }, 'name')
  }
}

function idOfNamed(named: string, rows: readonly Row[], noun: NounName, property: string): string {
  const [found, ...others] = rows.filter((row) => row[property] === named).map(({ id }) => String(id))
  if (found !== undefined && others.length > 0) throw severalNamed(named, [found, ...others])
  if (found !== undefined) return found
  throw notFound(
    noun,
    named,
    rows.map((row) => row[property]).filter((each) => typeof each === 'string'),
  )
}

const IDS_SHOWN = 10

export function severalNamed(named: string, ids: readonly string[]): CodedError {
  const rest = ids.length > IDS_SHOWN ? ` and ${ids.length - IDS_SHOWN} more` : ''
  return new CodedError(
    'USAGE',
    `Several are named ${named} (${ids.slice(0, IDS_SHOWN).join(', ')}${rest}). Use the id.`,
  )
}

/** The word for one object, and the name of its command. */
interface NounName {
  readonly one: string
  readonly name: string
}

export function notFound({ one, name }: NounName, named: string, known: readonly string[]): CodedError {
  const close = nearest(
    named,
    known.filter((each) => each !== ''),
  )
  return new CodedError(
    'NOT_FOUND',
    `There is no ${one} ${named}.${close === undefined ? '' : ` Did you mean ${close}?`}`,
    { details: { list: `tallygate ${name} list` } },
  )
}

function rowsOf(value: unknown, path: string): readonly Row[] {
  if (Array.isArray(value)) return value as readonly Row[]
  throw new CodedError('ANSWER_UNEXPECTED', `The response to GET ${path} has no list.`)
}
