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
  const objects = objectsIn(flags.file, io)
  using service = await administrator(flags, io)
  const site = new SitePlan(service, objects, io.now)
  await site.plan()
  const isDry = flags.dryRun === true
  const stop = io.stop()
  for (const index of objects.keys()) {
    try {
      if (!isDry) await site.planAgainIfInstanceIsNew(index)
      if (stop.aborted && site.steps.slice(index).some(isChange)) {
        io.stderr.write(stoppedText(site.steps, index))
        io.exitWith(INTERRUPTED)
        return
      }
      const step = isDry ? site.step(index) : await site.save(index)
      if (!isChange(step) || flags.quiet === true) continue
      writeLines(io.stdout, flags.json === true ? [jsonLine(documentOf(step))] : linesOf(step))
      const warning = await site.target.warningOf(step)
      if (warning !== undefined) io.stderr.write(`warning: ${warning}\n`)
      await site.target.add(step)
    } catch (error) {
      io.stderr.write(stoppedText(site.steps, index))
      throw error
    }
  }
  if (flags.json !== true && flags.quiet !== true) writeLines(io.stdout, [summaryOf(site.steps, isDry)])
  if (isDry && site.steps.some(isChange)) io.exitWith(WOULD_CHANGE)
}

function objectsIn(file: string, io: Io): readonly SiteObject[] {
  const objects = readSite(readDocument(file, io), io.now())
  if (objects.length > 0) return objects
  const name = file === '-' ? 'standard input' : file
  throw new CodedError('FILE_INVALID', `${name} names nothing to apply: no configuration, rateTables or instances`)
}

/** One step for each object of the file, in order. */
class SitePlan {
  readonly #service: Service
  readonly #objects: readonly SiteObject[]
  readonly #now: () => number
  readonly #steps: Step[] = []
  #target: Target

  constructor(service: Service, objects: readonly SiteObject[], now: () => number) {
    this.#service = service
    this.#objects = objects
    this.#now = now
    this.#target = new Target(service)
  }

  get steps(): readonly Step[] {
    return this.#steps
  }

  get target(): Target {
    return this.#target
  }

  step(index: number): Step {
    const step = this.#steps[index]
    if (step === undefined) throw new Error('invariant: the site is planned')
    return step
  }

  /** @throws CodedError FILE_INVALID */
  async plan(from = 0, end = this.#objects.length): Promise<void> {
    const steps = await planned(this.#objects.slice(from, end), this.#target, this.#now())
    this.#steps.splice(from, steps.length, ...steps)
  }

  /** Another administrator may have created the instance meanwhile, with rules that were not read. */
  async planAgainIfInstanceIsNew(index: number): Promise<void> {
    const before = this.#steps[index - 1]
    if (before?.object.noun.name !== 'instances' || !isChange(before)) return
    const name = valueText(before.body['shortName'])
    await this.plan(index, index + this.#objects.filter(({ instance }) => instance === name).length)
  }

  /** Returns the step as it was saved: planned again if another administrator has changed the rules meanwhile. */
  async save(index: number): Promise<Step> {
    return this.#service.ofReadRules(
      async () => {
        const step = this.step(index)
        if (isChange(step)) await this.#target.save(step)
        return step
      },
      async () => {
        this.#target = new Target(this.#service)
        await this.plan(index)
      },
    )
  }
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
