/** A file with everything that administrators set in a cloud, as objects in the sequence of their creation. */
import { z } from 'zod'
import { CodedError } from '../../protocol/errors.ts'
import { type Settable, isRow, noSuchField, problemsOf, withTimes } from './change.ts'
import { type FileDocument, type Path, invalidFile } from './document.ts'
import { valueText } from './noun.ts'
import { settableNoun } from './nouns.ts'
import type { Row } from './service.ts'

export interface SiteObject {
  readonly noun: Settable
  readonly given: Row
  /** Short name of the instance that it belongs to; null: none. */
  readonly instance: string | null
  readonly where: (path?: Path) => string
}

const list = z.array(z.record(z.string(), z.unknown())).optional()

const instanceForm = z.looseObject({
  conditions: list,
  lineItems: z.array(z.looseObject({ limit: z.record(z.string(), z.unknown()).optional() })).optional(),
})

const siteForm = z.strictObject({
  configuration: z.record(z.string(), z.union([z.string(), z.boolean()])).optional(),
  rateTables: list,
  instances: z.array(instanceForm).optional(),
})

/** By the noun whose objects contain them. */
const SECTIONS: Readonly<Record<string, readonly string[]>> = {
  instances: ['conditions', 'lineItems'],
  'line-items': ['actions', 'limit'],
}

type InstanceForm = z.infer<typeof instanceForm>
type SiteForm = z.infer<typeof siteForm>

/** @throws CodedError FILE_INVALID with the line of each problem */
export function readSite({ value, where }: FileDocument, now: number): readonly SiteObject[] {
  const parsed = siteForm.safeParse(value ?? {})
  if (!parsed.success) {
    const problems = parsed.error.issues.flatMap((issue) =>
      issue.code === 'unrecognized_keys'
        ? issue.keys.map((key) => `${where([key])}: ${noSuchField(key, Object.keys(siteForm.shape))}`)
        : [`${where(issue.path)}: ${issue.message}`],
    )
    throw invalidFile(problems)
  }
  const problems: string[] = []
  const objects: SiteObject[] = []
  for (const { name, given, path, instance = null } of partsOfSite(parsed.data)) {
    const noun = settableNoun(name)
    const at = (inner: Path = []): string => where([...path, ...inner])
    try {
      const timed = withTimes(noun, given, at)
      // A field that is missing here may exist in the cloud; a name may not.
      const found = problemsOf(noun, noun.set.complete(timed, {}, now), SECTIONS[name])
      const wrong = found.filter(({ isMissing, path: [first] }) => isMissing !== true || first === noun.set.name)
      problems.push(...wrong.map((each) => `${at(each.path)}: ${each.problem}`))
      objects.push({ noun, given: timed, instance, where: at })
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      problems.push(error.message)
    }
  }
  problems.push(...repeated(objects))
  if (problems.length > 0) throw invalidFile(problems)
  return objects
}

interface Part {
  /** Of the noun. */
  readonly name: string
  readonly given: Row
  readonly path: Path
  /** Name of the instance that it belongs to. */
  readonly instance?: string
}

/** In the sequence in which they must be saved. */
function* partsOfSite({ configuration = {}, rateTables = [], instances = [] }: SiteForm): Generator<Part> {
  for (const [name, set] of Object.entries(configuration))
    yield { name: 'configuration', given: { name, value: String(set) }, path: ['configuration', name] }
  for (const [index, given] of rateTables.entries()) yield { name: 'rate-tables', given, path: ['rateTables', index] }
  for (const [index, instance] of instances.entries()) yield* partsOfInstance(instance, ['instances', index])
}

function* partsOfInstance({ conditions = [], lineItems = [], ...given }: InstanceForm, path: Path): Generator<Part> {
  const instance = valueText(given['shortName'])
  yield { name: 'instances', given, path }
  for (const [index, condition] of conditions.entries())
    yield { name: 'conditions', given: condition, path: [...path, 'conditions', index], instance }
  for (const [index, lineItem] of lineItems.entries())
    for (const part of partsOfLineItem(lineItem, [...path, 'lineItems', index])) yield { ...part, instance }
}

function partsOfLineItem({ actions, limit, ...lineItem }: Row, path: Path): readonly Part[] {
  const { activationId: lineItemId } = lineItem
  return [
    { name: 'line-items', given: lineItem, path },
    ...(actions === undefined ? [] : [{ name: 'rules', given: { lineItemId, actions }, path }]),
    ...(isRow(limit) ? [{ name: 'limits', given: { ...limit, lineItemId }, path: [...path, 'limit'] }] : []),
  ]
}

/** The problem of each object that the file names again: it would overwrite the first. */
export function repeated(objects: readonly SiteObject[]): readonly string[] {
  const first = new Map<string, SiteObject>()
  return objects.flatMap((object) => {
    const { noun, given, instance } = object
    const key = JSON.stringify([noun.name, instance, noun.nameOf(noun.set.complete(given, {}, 0))])
    const earlier = first.get(key)
    first.set(key, earlier ?? object)
    return earlier === undefined ? [] : [`${object.where()}: the same ${noun.one} as at ${earlier.where()}`]
  })
}
