import { setTimeout as sleep } from 'node:timers/promises'
import { Command, Option } from 'commander'
import type { z } from 'zod'
import { counted } from '../../core/accounts/in-words.ts'
import type { Call } from '../../client/call.ts'
import { type Answer, type ClientOptions, HttpClient, parsedBody } from '../../client/http.ts'
import { type ImportResult, importResult } from '../../protocol/edge/import.ts'
import { CodedError } from '../../protocol/errors.ts'
import { API_VERSIONS, type ApiVersion } from '../../protocol/service/status.ts'
import {
  type AdministratorFlags,
  administratorToken,
  keyToken,
  targetOf,
  withAdministratorFlags,
} from '../administrator.ts'
import { readAuthority, readFileArgument, urlArgument, uuidArgument } from '../arguments.ts'
import { collect } from '../collect.ts'
import { examples } from '../examples.ts'
import { type RateTableTarget, importRateTables } from '../import/rate-tables.ts'
import { withRetries } from '../import/retries.ts'
import { Source, type SourceInstance } from '../import/source.ts'
import type { Io } from '../io.ts'
import { harmless, jsonLine, table, writeLines } from '../lines.ts'

interface ImportFlags extends AdministratorFlags {
  readonly from: string
  readonly fromKey?: string
  readonly fromKid?: string
  readonly fromToken?: string
  readonly fromVersion: ApiVersion
  readonly instance?: readonly string[]
  readonly rateTables: boolean
  readonly apply?: true
  readonly addUsed?: true
  readonly lowerUsed?: true
}

const ANSWER_MAX = 64 * 1024 * 1024

export function command(io: Io): Command {
  const command = withAdministratorFlags(new Command('import'))
    .description(
      'Imports from another service: instances, line items with their use, conditions, actions and rate tables. Without --apply, shows what would change. Can be repeated: the next run imports only the difference.',
    )
    .requiredOption('--from <url>', 'address of the source, including its path prefix', sourceArgument)
    .option('--from-key <file>', 'private administration key of the source (PEM)')
    .option('--from-kid <id>', 'id of that key at the source (default: its RFC 7638 thumbprint)')
    .addOption(new Option('--from-token <file>', 'file with an access token of the source').conflicts('fromKey'))
    .addOption(
      new Option('--from-version <version>', 'API version of the source').choices(API_VERSIONS).default('v1.1'),
    )
    .option('--instance <uuid>', 'import only this instance; can be repeated', collect(uuidArgument))
    .option('--no-rate-tables', 'do not import rate tables')
    .option('--apply', 'make the changes')
    .option('--add-used', 'add use at the source to use that a line item or action already has here')
    .option('--lower-used', 'permit lower use than imported before, and removing actions that have use')
    .option('--json', 'print one JSON document per line: rate tables, each instance, ignored fields')
    .action((flags: ImportFlags) => importAll(flags, io))
  return examples(command, [
    'SOURCE=(--from https://site.example/dynamicmonetization --from-key source-key.pem --from-kid my-key)',
    'tallygate import "${SOURCE[@]}"',
    'tallygate import "${SOURCE[@]}" --apply',
  ])
}

async function importAll(flags: ImportFlags, io: Io): Promise<void> {
  const target = targetOf(flags, io)
  if (flags.from === target.url) {
    throw new CodedError('USAGE', '--from is this cloud: name another service.')
  }
  using from = connect(io, {
    address: flags.from,
    name: 'The source',
    token: sourceToken(flags, io),
    unreachable: 'SOURCE_UNREACHABLE',
  })
  using cloud = connect(io, {
    address: target.url,
    name: 'The cloud',
    token: async () => administratorToken(target, io),
    unreachable: 'SERVICE_UNREACHABLE',
    ...(target.caFile === undefined ? {} : { ca: readAuthority(io, target.caFile) }),
  })
  const source = new Source(flags.fromVersion, async (path) => from.send({ method: 'GET', path }))
  const report = new Report(flags, io)
  if (flags.rateTables) report.rateTables(await importRateTables(source, cloud, flags.apply === true))
  try {
    for await (const instance of instancesOf(source, flags)) {
      report.instance(instance, await importOne(source, cloud, instance, flags))
    }
  } catch (error) {
    if (flags.apply === true)
      io.stderr.write(`Stopped after ${report.done} instances. Run the command again to continue.\n`)
    throw error
  }
  report.end([...source.ignored])
}

async function* instancesOf(source: Source, { instance: ids }: ImportFlags): AsyncGenerator<SourceInstance> {
  if (ids === undefined) yield* source.instances()
  else for (const id of new Set(ids.map((each) => each.toLowerCase()))) yield source.instance(id)
}

async function importOne(
  source: Source,
  cloud: RateTableTarget,
  { id, ...instance }: SourceInstance,
  flags: ImportFlags,
): Promise<ImportResult> {
  const { notes, ...rules } = await source.rules(id)
  const permits = { apply: flags.apply === true, addUsed: flags.addUsed === true, lowerUsed: flags.lowerUsed === true }
  const body = { source: flags.from, ...permits, instance, ...rules }
  try {
    const result = await cloud.json({ method: 'PUT', path: `/edge/api/v1/instances/${id}/import`, body }, importResult)
    return { ...result, notes: [...notes, ...result.notes] }
  } catch (error) {
    // The cloud cannot store what this instance has; others are not affected.
    const isOfInstance = error instanceof CodedError && ['BAD_REQUEST', 'BODY_TOO_LARGE'].includes(error.code)
    if (!isOfInstance) throw error
    return { applied: false, changes: [], notes: [...notes], conflicts: [`${error.code}: ${error.message}`] }
  }
}

type Remote = ClientOptions & {
  readonly name: string
  /** Made for each request: an import can outlive a token. */
  readonly token: () => Promise<string>
}

/** All requests to it can be repeated while it is busy. */
function connect(io: Io, { name, token, ...remote }: Remote): RateTableTarget & Disposable {
  const client = new HttpClient({ ...remote, proxy: io.env, answerMax: ANSWER_MAX })
  const onBusy = (status: number, ms: number): void => {
    io.stderr.write(`${name} is busy (HTTP status ${status}). Trying again in ${Math.ceil(ms / 1_000)} s.\n`)
  }
  const patience = { now: io.now, wait: async (ms: number) => sleep(ms), onBusy }
  const send = async (call: Call): Promise<Answer> =>
    withRetries(async () => client.call({ ...call, headers: { authorization: `Bearer ${await token()}` } }), patience)
  return {
    send,
    async json<T extends z.ZodType>(call: Call, schema: T): Promise<z.output<T>> {
      return parsedBody(call, await send(call), schema)
    },
    [Symbol.dispose]: () => client[Symbol.dispose](),
  }
}

function sourceToken({ fromKey, fromKid, fromToken }: ImportFlags, io: Io): () => Promise<string> {
  if (fromKey !== undefined) return async () => keyToken(fromKey, fromKid, io)
  if (fromToken === undefined) throw new CodedError('USAGE', 'Give --from-key or --from-token.')
  const token = readFileArgument(io, fromToken, 'USAGE').trim()
  if (!/^[\w.~+/=-]+$/.test(token)) throw new CodedError('USAGE', `${fromToken} does not contain a token.`)
  return async () => token
}

class Report {
  readonly #flags: ImportFlags
  readonly #io: Io
  #changes = 0
  #conflicts = 0
  done = 0

  constructor(flags: ImportFlags, io: Io) {
    this.#flags = flags
    this.#io = io
  }

  rateTables(result: ImportResult): void {
    this.#print('Rate tables', { rateTables: result }, result)
  }

  instance({ id, shortName, accountId }: SourceInstance, result: ImportResult): void {
    this.done += 1
    this.#print(`Instance ${id} (${shortName}, account ${accountId})`, { instanceId: id, shortName, ...result }, result)
  }

  #print(title: string, json: object, { changes, notes, conflicts }: ImportResult): void {
    this.#changes += changes.length
    this.#conflicts += conflicts.length === 0 ? 0 : 1
    if (this.#flags.json === true) {
      writeLines(this.#io.stdout, [jsonLine(json)])
      return
    }
    const rows = changes.map(({ object, field, before, after }) => [object, field, before ?? '-', after ?? '-'])
    const lines = [
      ...table(['OBJECT', 'FIELD', 'HERE', 'AFTER'], rows, 'no changes'),
      ...notes.map((note) => `note: ${note}`),
      ...conflicts.map((conflict) => `conflict: ${conflict}`),
    ]
    writeLines(this.#io.stdout, [title, ...lines.map((line) => `  ${line}`), ''])
  }

  end(ignored: readonly string[]): void {
    const isApplied = this.#flags.apply === true
    if (this.#flags.json === true) writeLines(this.#io.stdout, [jsonLine({ ignored })])
    else {
      const missing = this.#flags.fromVersion === 'v1.0' ? ['API v1.0 shows no reset frequencies and no formulas.'] : []
      const fields = ignored.length === 0 ? [] : [`Ignored unknown fields: ${ignored.map(harmless).join(', ')}.`]
      const changes = counted(this.#changes, 'change', 'changes')
      const sum = `${changes} in ${counted(this.done, 'instance', 'instances')} and the rate tables.`
      const what = isApplied ? `Applied ${sum}` : `Dry run: nothing was changed. ${sum} Make the changes with --apply.`
      writeLines(this.#io.stdout, [...missing, ...fields, this.#changes === 0 ? 'No changes.' : what])
    }
    if (this.#conflicts === 0) return
    const many = this.#conflicts === 1 ? 'One part has conflicts' : `${this.#conflicts} parts have conflicts`
    throw new CodedError('IMPORT_CONFLICT', `${many} and ${isApplied ? 'was not changed' : 'would not be changed'}.`)
  }
}

/** Without credentials, which would be printed and recorded, and without a final slash. */
function sourceArgument(text: string): string {
  const url = new URL(urlArgument(text))
  if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') {
    // Not the parser's error, which would repeat the text.
    throw new CodedError('USAGE', '--from must be a URL without user name, password, query and fragment.')
  }
  return url.href.replace(/\/+$/, '')
}
