import { Command, InvalidArgumentError, Option } from 'commander'
import { CodedError } from '../../protocol/errors.ts'
import { typedNumber } from '../../protocol/typed-number.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { rateArgument, requireRange, timeArgument, tokensArgument, wholeNumberArgument } from '../arguments.ts'
import { collect } from '../collect.ts'
import { type ConfirmFlags, isConfirmed, withConfirmation } from '../confirm.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { columns, jsonLine, table, writeLines } from '../lines.ts'
import { type ListFlags, endText, widthFor, withListOptions } from '../lists.ts'
import { type Settable, isRow, plan, problemsOf, withTimes } from './change.ts'
import { type Path, invalidFile, readDocument } from './document.ts'
import { type Field, type Names, type Noun, type Scope, instantText, valueText } from './noun.ts'
import { NOUNS } from './nouns.ts'
import { type Row, type Service, notFound, severalNamed } from './service.ts'
import { type SiteObject, repeated } from './site.ts'

interface Flags extends AdministratorFlags, ListFlags {
  readonly instance?: string
  readonly since?: number
  readonly until?: number
  readonly device?: string
  readonly refused?: true
  readonly limit?: number
  readonly file?: string
}

const DAY_MS = 86_400_000

const MORE =
  'Shorten the time with --since and --until, raise --limit, add them up with tallygate usage totals, or write all to a file with tallygate usage export.'

export function nounCommand(name: string, io: Io): Command {
  const noun = NOUNS.find((each) => each.name === name)
  if (noun === undefined) throw new Error(`invariant: there is no noun ${name}`)
  const group = examples(new Command(name), noun.examples)
  addReaders(group, noun, io)
  if (noun.set !== undefined) addSet(group, { ...noun, set: noun.set }, io)
  if (noun.remove !== undefined) addDelete(group, noun, noun.remove, io)
  return group
}

function addReaders(group: Command, noun: Noun, io: Io): void {
  const list = verb(group, noun, 'list').description(`Lists ${several(noun)}.`)
  if (noun.since === true) {
    list
      .option('--since <time>', 'only at or after this time (default: 24 hours ago)', timeArgument)
      .option('--until <time>', 'only before this time', timeArgument)
      .option('--device <name>', 'only of this device: its name or id')
      .option('--refused', 'only refused requests')
      .option('--limit <n>', 'maximum number of records, oldest first', wholeNumberArgument(1, 100_000), 1_000)
  }
  withListOptions(list, 'print one JSON document per line, with exact amounts').action(async (flags: Flags) => {
    using service = await administrator(flags, io)
    const found = await noun.list(service, await scopeOf(noun, service, flags, io))
    const rows = found.slice(0, flags.limit)
    const lines = flags.json === true ? rows.map(jsonLine) : await tableOf(noun, rows, service, widthFor(flags, io))
    writeLines(io.stdout, lines)
    if (rows.length === noun.listedMax) io.stderr.write(endText(rows.length, several(noun)))
    if (rows.length < found.length) io.stderr.write(`There are more ${several(noun)}. ${MORE}\n`)
  })
  if (noun.since === true) return
  verb(group, noun, 'show')
    .description(`Shows ${a(noun.one)}.`)
    .argument('<name>', `${noun.one}: its name or id`)
    .option('--json', 'print one JSON document, with exact amounts')
    .action(async (name: string, flags: Flags) => {
      using service = await administrator(flags, io)
      const row = await found(noun, name, service, await scopeOf(noun, service, flags, io))
      writeLines(io.stdout, flags.json === true ? [jsonLine(row)] : columns(pairsOf(row, '')))
    })
}

function addSet(group: Command, noun: Settable, io: Io): void {
  const set = verb(group, noun, 'set')
    .description(
      noun.set.fixed === true
        ? `Creates ${a(noun.one)}. An existing one cannot be changed.`
        : `Creates ${a(noun.one)}, or changes the given fields of the existing one. Does nothing if there is no difference.`,
    )
    .argument('[name]', `${noun.set.called}; not needed if the file names it`)
    .option('-f, --file <file>', 'JSON or YAML file with one object or a list; - for standard input')
    .option('--json', 'print each object that was saved as JSON')
  addFieldOptions(set, noun.set.fields, io)
  set.action(async (name: string | undefined, flags: Flags) => {
    const given = givenObjects(noun, name, flags, io)
    using service = await administrator(flags, io)
    const scope = await scopeOf(noun, service, flags, io)
    let known = await noun.list(service, scope)
    const save = async (object: Row): Promise<{ readonly outcome: string; readonly body: Row }> => {
      const existing = known.find((row) => isSame(noun, row, object))
      const isFromFlags = flags.file === undefined && existing !== undefined
      const wanted = isFromFlags ? withFlags(givenBy(noun, existing), noun.set.fields, { ...flags }) : object
      const planned = plan(noun, wanted, existing, io.now())
      const [problem] = problemsOf(noun, planned.body)
      if (problem !== undefined) {
        const path = problem.path.join('.')
        const option = flags.file === undefined ? noun.set.fields.find((field) => field.path === path) : undefined
        const place = path === '' ? '' : `${option === undefined ? path : optionName(option)}: `
        throw new CodedError('USAGE', `${place}${problem.problem}`)
      }
      const { body, differences } = planned
      if (isFromFlags && !hasFields(noun.set.fields, { ...flags })) {
        const options = [...noun.set.fields.map(optionName), '--file'].join(', ')
        io.stderr.write(`Nothing was changed: give at least one option that changes it (${options}).\n`)
        return { outcome: 'unchanged', body }
      }
      if (differences.length === 0) return { outcome: 'unchanged', body }
      await service.send(await noun.set.call({ service, scope, ...planned }))
      if (existing !== undefined) return { outcome: 'changed', body }
      const warning = noun.set.warning?.(body, known)
      if (warning !== undefined) io.stderr.write(`warning: ${warning}\n`)
      known = [...known, body]
      return { outcome: 'created', body }
    }
    for (const object of given) {
      const { outcome, body } = await service.ofReadRules(
        async () => save(object),
        async () => {
          known = await noun.list(service, scope)
        },
      )
      const line = `${noun.one} ${valueText(object[noun.set.name])}: ${outcome}`
      writeLines(io.stdout, [flags.json === true ? jsonLine({ outcome, ...body }) : line])
    }
  })
}

function addDelete(group: Command, noun: Noun, pathOf: NonNullable<Noun['remove']>, io: Io): void {
  withConfirmation(verb(group, noun, 'delete'))
    .description(`Deletes ${a(noun.one)}.`)
    .argument('<name>', `${noun.one}: its name or id`)
    .action(async (name: string, flags: Flags & ConfirmFlags) => {
      using service = await administrator(flags, io)
      const scope = await scopeOf(noun, service, flags, io)
      let row = await found(noun, name, service, scope)
      const consequence = `The ${noun.one} ${noun.nameOf(row)} will be deleted, which cannot be undone.`
      if (!(await isConfirmed(consequence, 'delete', flags, io))) return
      const { status } = await service.ofReadRules(
        async () => service.send({ method: 'DELETE', path: pathOf(row, scope) }),
        async () => {
          row = await found(noun, name, service, scope)
        },
      )
      const done = status === 202 ? 'the device receives the command with its next sync' : 'deleted'
      writeLines(io.stdout, [`${noun.one} ${noun.nameOf(row)}: ${done}`])
    })
}

function several({ name, one }: Noun): string {
  return name === 'rules' ? 'the actions of line items' : `${one}s`
}

function a(one: string): string {
  return `${/^[aeio]/.test(one) ? 'an' : 'a'} ${one}`
}

function verb(group: Command, noun: Noun, name: string): Command {
  const command = withAdministratorFlags(group.command(name))
  if (noun.instance === 'one')
    command.option('--instance <name>', 'name or id of the instance (default: the only one of the cloud)')
  if (noun.instance === 'any') command.option('--instance <name>', 'only of this instance: its name or id')
  return command
}

async function scopeOf({ instance, since }: Noun, service: Service, flags: Flags, io: Io): Promise<Scope> {
  const isLimited = instance === 'one' || (instance === 'any' && flags.instance !== undefined)
  const instanceId = isLimited ? await service.instanceId(flags.instance) : null
  if (since !== true) return { instanceId }
  const range = {
    since: flags.since ?? io.now() - DAY_MS,
    ...(flags.until === undefined ? {} : { until: flags.until }),
  }
  requireRange(range)
  const device = flags.device === undefined ? {} : { deviceId: (await service.deviceId(flags.device)).toLowerCase() }
  const isRefused = flags.refused === true
  const limit = flags.limit === undefined ? {} : { limit: flags.limit }
  return { instanceId, ...range, ...device, isRefused, ...limit }
}

async function found(noun: Noun, name: string, service: Service, scope: Scope): Promise<Row> {
  if (noun.path !== undefined) return (await service.get(noun.path(name))) as Row
  const rows = await noun.list(service, scope)
  const namesOf = (row: Row): readonly string[] => [
    noun.nameOf(row),
    ...(noun.ids ?? []).map((property) => valueText(row[property])),
  ]
  const [first, ...others] = rows.filter((row) => namesOf(row).includes(name))
  if (first === undefined) throw notFound(noun, name, rows.flatMap(namesOf))
  if (others.length > 0) {
    const ids = [first, ...others].map((row) => valueText(row['id']))
    throw severalNamed(name, ids)
  }
  return first
}

function givenObjects(noun: Settable, name: string | undefined, flags: Flags, io: Io): readonly Row[] {
  const { set } = noun
  const withOptions = (object: Row): Row =>
    withFlags({ ...object, ...(name === undefined ? {} : { [set.name]: name }) }, set.fields, { ...flags })
  if (flags.file === undefined) {
    if (name === undefined) throw new CodedError('USAGE', `Give the ${set.called}, or a file with -f.`)
    return [withOptions({})]
  }
  const { value, where } = readDocument(flags.file, io)
  const list: readonly unknown[] = Array.isArray(value) ? value : [value]
  if (name !== undefined && list.length !== 1)
    throw new CodedError('USAGE', `${flags.file} has ${list.length} objects: omit the name.`)
  const objects = list.map((each, index): SiteObject => {
    const at = (path: Path = []): string => where([...(Array.isArray(value) ? [index] : []), ...path])
    if (!isRow(each)) throw new CodedError('FILE_INVALID', `${at()}: must be an object`)
    const object = withOptions(withTimes(noun, each, at))
    if (valueText(object[set.name]) === '') throw new CodedError('FILE_INVALID', `${at([set.name])}: is missing`)
    // A field that is missing here may exist in the cloud.
    const problem = problemsOf(noun, set.complete(object, {}, io.now())).find((found) => !found.isMissing)
    if (problem === undefined) return { noun, given: object, instance: null, where: at }
    throw new CodedError('FILE_INVALID', `${at(problem.path)}: ${problem.problem}`)
  })
  const problems = repeated(objects)
  if (problems.length > 0) throw invalidFile(problems)
  return objects.map((object) => object.given)
}

/** The fields of an existing object that stay if options omit them. */
function givenBy({ set }: Settable, existing: Row): Row {
  const { [set.derived ?? '']: _derived, ...kept } = set.current(existing)
  return kept
}

function isSame(noun: Settable, row: Row, object: Row): boolean {
  return noun.nameOf(row) === noun.nameOf(noun.set.complete(object, {}, 0))
}

async function tableOf(
  noun: Noun,
  rows: readonly Row[],
  service: Service,
  widthMax: number | undefined,
): Promise<readonly string[]> {
  const named = rows.length === 0 ? [] : noun.columns.flatMap((column) => column.named ?? [])
  const names = await namesFor(new Set(named), service)
  const lines = rows.flatMap((row) => noun.lines?.(row) ?? [row])
  const head = noun.columns.map((column) => column.head)
  const cells = lines.map((line) => noun.columns.map((column) => column.of(line, names)))
  return table(head, cells, `No ${noun.name.replaceAll('-', ' ')}.`, widthMax)
}

export async function namesFor(lists: ReadonlySet<'instances' | 'devices'>, service: Service): Promise<Names> {
  const instances = lists.has('instances') ? await service.instances() : []
  const devices = lists.has('devices') ? await service.devices() : []
  const entries = [...instances, ...devices].map((row) => [
    valueText(row['id']),
    valueText(row['shortName'] ?? row['name']),
  ])
  return new Map(entries.filter(([, name]) => name !== '') as [string, string][])
}

/** Properties of objects that are POSIX milliseconds; 0: not limited, or never. */
const TIMES: ReadonlySet<string> = new Set([
  ...['chargedUntil', 'created', 'effectiveFrom', 'end', 'lastAccessRequest', 'modified', 'nextReset', 'start'],
])

function pairsOf(row: Row, prefix: string): readonly (readonly string[])[] {
  return Object.entries(row).flatMap(([name, value]) => {
    const path = `${prefix}${name}`
    if (TIMES.has(path) && valueText(value) !== '0') return [[path, instantText(value)]]
    if (Array.isArray(value) && value.some((each) => typeof each === 'object'))
      return value.flatMap((each, index) => pairsOf(each as Row, `${path}[${index}].`))
    return isRow(value)
      ? pairsOf(value, `${path}.`)
      : [[path, Array.isArray(value) ? value.join(', ') : valueText(value)]]
  })
}

function addFieldOptions(command: Command, fields: readonly Field[], io: Io): void {
  for (const { flags, help, kind, isFuture } of fields) {
    const option = new Option(flags, help)
    if (typeof kind !== 'string') option.choices(kind)
    else option.argParser(isFuture === true ? (text) => futureArgument(text, io) : PARSERS[kind])
    command.addOption(option)
  }
}

function optionName({ flags }: Field): string {
  return new Option(flags).long ?? flags
}

function futureArgument(text: string, io: Io): number {
  const at = timeArgument(text)
  if (at > io.now()) return at
  throw new InvalidArgumentError('Use a time in the future.')
}

function hasFields(fields: readonly Field[], flags: Readonly<Record<string, unknown>>): boolean {
  return fields.some(({ flags: declared }) => flags[new Option(declared).attributeName()] !== undefined)
}

function withFlags(object: Row, fields: readonly Field[], flags: Readonly<Record<string, unknown>>): Row {
  return fields.reduce((row, { path, flags: declared }) => {
    const value = flags[new Option(declared).attributeName()]
    if (value === undefined) return row
    const [first = '', second] = path.split('.')
    if (second === undefined) return { ...row, [first]: value }
    return { ...row, [first]: { ...(row[first] as Row | undefined), [second]: value } }
  }, object)
}

const PARSERS: Readonly<Record<Extract<Field['kind'], string>, (text: string, before: unknown) => unknown>> = {
  text: (text) => text,
  time: timeArgument,
  number: tokensArgument,
  boolean: (text) => {
    if (text !== 'true' && text !== 'false') throw new InvalidArgumentError('Use true or false.')
    return text === 'true'
  },
  words: (text) => {
    const words = text.split(',').map((word) => word.trim())
    if (words.includes('')) throw new InvalidArgumentError('Use words with commas between them, such as design,cad.')
    return words
  },
  rates: collect(rateOf),
}

/** `LaserCut@1.0=0.85` or `LaserCut=0.85` */
function rateOf(text: string): Row {
  const [, name, version, rate = ''] = /^([^@=]+)(?:@([^=]+))?=([\d.]+)$/.exec(text) ?? []
  if (name === undefined || Number.isNaN(typedNumber(rate)))
    throw new InvalidArgumentError('Use an item with its rate, such as LaserCut@1.0=0.85.')
  return { name, ...(version === undefined ? {} : { version }), rate: rateArgument(rate) }
}
