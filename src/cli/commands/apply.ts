import { Command } from 'commander'
import { CodedError } from '../../protocol/errors.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { examples } from '../examples.ts'
import { INTERRUPTED, type Io } from '../io.ts'
import { jsonLine, writeLines } from '../lines.ts'
import { type Planned, isRow, plan, problemsOf } from '../nouns/change.ts'
import { invalidFile, readDocument } from '../nouns/document.ts'
import { valueText } from '../nouns/noun.ts'
import { windowText } from '../nouns/nouns.ts'
import { type Row, type Service, notFound } from '../nouns/service.ts'
import { type SiteObject, readSite } from '../nouns/site.ts'

interface ApplyFlags extends AdministratorFlags {
  readonly file: string
  readonly dryRun?: true
  readonly quiet?: true
}

const WOULD_CHANGE = 2

export function command(io: Io): Command {
  const apply = withAdministratorFlags(new Command('apply'))
    .description(
      'Makes the cloud have what a file says: configuration, rate tables, instances, conditions, line items, actions and limits. Shows the differences and changes only them. What the file does not name stays. With --dry-run, exit code 2 says that something would change.',
    )
    .requiredOption('-f, --file <file>', 'JSON or YAML file; - for standard input')
    .option('--dry-run', 'show the differences, and change nothing')
    .option('--json', 'print one JSON document per line for each difference')
    .action((flags: ApplyFlags) => applySite(flags, io))
  return examples(apply, ['tallygate apply -f site.yaml --dry-run', 'tallygate apply -f site.yaml'])
}

interface Step extends Planned {
  readonly object: SiteObject
}

export async function applySite(flags: ApplyFlags, io: Io): Promise<void> {
  const objects = readSite(readDocument(flags.file, io), io.now())
  if (objects.length === 0) {
    const name = flags.file === '-' ? 'standard input' : flags.file
    throw new CodedError('FILE_INVALID', `${name} names nothing to apply: no configuration, rateTables or instances`)
  }
  using service = await administrator(flags, io)
  let target = new Target(service)
  const steps = [...(await planned(objects, target, io.now()))]
  const isDry = flags.dryRun === true
  const stop = io.stop()
  const save = async (index: number): Promise<Step | undefined> => {
    const step = steps[index]
    if (step !== undefined && isChange(step) && !isDry) await target.save(step)
    return step
  }
  const planAgain = async (index: number, end?: number): Promise<void> => {
    const again = await planned(objects.slice(index, end), target, io.now())
    steps.splice(index, again.length, ...again)
  }
  for (const index of objects.keys()) {
    try {
      const before = steps[index - 1]
      // Another administrator may have created it meanwhile, with rules that were not read.
      if (before?.object.noun.name === 'instances' && isChange(before) && !isDry) {
        const name = valueText(before.body['shortName'])
        await planAgain(index, index + objects.filter(({ instance }) => instance === name).length)
      }
      if (stop.aborted && steps.slice(index).some(isChange)) {
        io.stderr.write(stoppedText(steps, index))
        io.exitWith(INTERRUPTED)
        return
      }
      const step = await service.ofReadRules(
        async () => save(index),
        async () => {
          target = new Target(service)
          await planAgain(index)
        },
      )
      if (step === undefined || !isChange(step) || flags.quiet === true) continue
      writeLines(io.stdout, flags.json === true ? [jsonLine(documentOf(step))] : linesOf(step))
      const warning = await target.warningOf(step)
      if (warning !== undefined) io.stderr.write(`warning: ${warning}\n`)
      await target.add(step)
    } catch (error) {
      io.stderr.write(stoppedText(steps, index))
      throw error
    }
  }
  if (flags.json !== true && flags.quiet !== true) writeLines(io.stdout, [summaryOf(steps, isDry)])
  if (isDry && steps.some(isChange)) io.exitWith(WOULD_CHANGE)
}

function isChange({ differences }: Step): boolean {
  return differences.length > 0
}

function stoppedText(steps: readonly Step[], index: number): string {
  const done = steps.slice(0, index).filter(isChange).length
  return `Stopped after ${done} of ${steps.filter(isChange).length} changes. Run the command again to continue.\n`
}

/** Finds every problem before anything is changed. @throws CodedError FILE_INVALID */
async function planned(objects: readonly SiteObject[], target: Target, now: number): Promise<readonly Step[]> {
  const problems: string[] = []
  const steps: Step[] = []
  for (const object of objects) {
    const { noun, given, where } = object
    const existing = await target.find(object)
    try {
      const step = { object, ...plan(noun, given, existing, now) }
      problems.push(...problemsOf(noun, step.body).map(({ path, problem }) => `${where(path)}: ${problem}`))
      if (noun.name === 'rules') problems.push(...(await unknownConditions(object, objects, target)))
      steps.push(step)
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      problems.push(`${where()}: ${error.message}`)
    }
  }
  if (problems.length > 0) throw invalidFile(problems)
  return steps
}

async function unknownConditions(
  { given, instance, where }: SiteObject,
  objects: readonly SiteObject[],
  target: Target,
): Promise<readonly string[]> {
  const here = objects.filter((each) => each.noun.name === 'conditions' && each.instance === instance)
  const there = await target.conditions(instance)
  const known = [
    ...here.map((each) => valueText(each.given['name'])),
    ...there.flatMap(({ id, name }) => [valueText(id), valueText(name)]),
  ]
  const actions = Array.isArray(given['actions']) ? (given['actions'] as readonly unknown[]) : []
  return actions.flatMap((action, index) => {
    const condition = isRow(action) ? action['condition'] : undefined
    if (condition === undefined || known.includes(valueText(condition))) return []
    return [
      `${where(['actions', index, 'condition'])}: ${notFound({ one: 'condition', name: 'conditions' }, valueText(condition), known).message}`,
    ]
  })
}

class Target {
  readonly #service: Service
  readonly #lists = new Map<string, Row[]>()
  /** Ids by short name. */
  #instances: Promise<Map<string, string>> | undefined

  constructor(service: Service) {
    this.#service = service
  }

  async find(object: SiteObject): Promise<Row | undefined> {
    const { noun, given, where } = object
    const name = noun.nameOf(noun.set.complete(given, {}, 0))
    const rows = await this.#rows(object)
    const [found, ...others] = rows.filter((row) => noun.nameOf(row) === name)
    if (others.length === 0) return found
    const ids = [found, ...others].map((row) => valueText(row?.['id'])).join(', ')
    throw new CodedError(
      'CONFLICT',
      `${where()}: The cloud has several ${noun.name} with the name ${name} (${ids}). Delete all but one.`,
    )
  }

  async warningOf({ object, existing, body }: Step): Promise<string | undefined> {
    return existing === undefined ? object.noun.set.warning?.(body, await this.#rows(object)) : undefined
  }

  /** Adds a new object to the list, which is not read again. */
  async add({ object, existing, body }: Step): Promise<void> {
    if (existing === undefined) (await this.#rows(object)).push(body)
  }

  /** None: the instance does not exist yet. */
  async #rows({ noun, instance }: SiteObject): Promise<Row[]> {
    const instanceId = await this.#instanceId(instance)
    if (instanceId === undefined) return []
    const key = `${noun.name} ${instanceId}`
    const rows = this.#lists.get(key) ?? [...(await noun.list(this.#service, { instanceId }))]
    this.#lists.set(key, rows)
    return rows
  }

  async conditions(instance: string | null): Promise<readonly Row[]> {
    const instanceId = await this.#instanceId(instance)
    return instanceId === undefined ? [] : this.#service.rows(`/api/v1.1/instances/${instanceId}/conditions`)
  }

  async save({ object: { noun, instance, where }, ...step }: Step): Promise<void> {
    const instanceId = (await this.#instanceId(instance)) ?? null
    try {
      const call = await noun.set.call({ service: this.#service, scope: { instanceId }, ...step })
      const { text } = await this.#service.send(call)
      if (noun.name !== 'instances') return
      const id = (parseJson(text) as Row | undefined)?.['id']
      ;(await this.#instances)?.set(valueText(step.body['shortName']), valueText(id))
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      throw new CodedError(error.code, `${where()}: ${error.message}`, { cause: error })
    }
  }

  /** Null for an object of no instance; undefined if the instance does not exist yet. */
  async #instanceId(name: string | null): Promise<string | null | undefined> {
    if (name === null) return null
    this.#instances ??= this.#service
      .instances()
      .then((rows) => new Map(rows.map(({ shortName, id }) => [valueText(shortName), valueText(id)])))
    return (await this.#instances).get(name)
  }
}

function nameOf({ object: { noun, instance }, body }: Step): string {
  return `${noun.one} ${noun.nameOf(body)}${instance === null ? '' : ` of ${instance}`}`
}

function linesOf(step: Step): readonly string[] {
  const { object, existing, differences } = step
  const times = new Set(object.noun.set.fields.flatMap(({ kind, path }) => (kind === 'time' ? [path] : [])))
  const shown = differences.map(({ path, before, after }) => {
    const text = (value: string | null): string =>
      value === null || value === '' ? 'none' : times.has(path) ? windowText(Number(value)) || 'any' : value
    return `    ${path}: ${existing === undefined ? '' : `${text(before)} -> `}${text(after)}`
  })
  return [`${existing === undefined ? '+' : '~'} ${nameOf(step)}`, ...shown]
}

function documentOf({ object: { noun, instance }, body, existing, differences }: Step) {
  const change = existing === undefined ? 'create' : 'change'
  return { change, kind: noun.name, name: noun.nameOf(body), instance, differences }
}

function summaryOf(steps: readonly Step[], isDry: boolean): string {
  const changes = steps.filter(isChange)
  const created = changes.filter(({ existing }) => existing === undefined).length
  const counts = `${created} created, ${changes.length - created} changed, ${steps.length - changes.length} unchanged.`
  if (changes.length === 0) return `No changes: ${counts}`
  return isDry ? `Dry run, nothing was changed. It would be: ${counts}` : counts
}
