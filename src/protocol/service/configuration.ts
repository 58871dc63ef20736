/** Configuration values of the tenant. Source: interface, Configuration; documentation on configuration. */
import { z } from 'zod'
import { instant, readOnlyField } from '../wire.ts'
import type { ApiVersion } from './status.ts'

export type ConfigurationName = 'timezone.tolerant' | 'session.charge.period'

interface Definition {
  readonly name: ConfigurationName
  readonly default: string
  readonly versions: readonly ApiVersion[]
  readonly takes: string
  readonly accepts: (value: string) => boolean
}

export const CONFIGURATION: readonly Definition[] = [
  {
    name: 'timezone.tolerant',
    default: 'false',
    versions: ['v1.0', 'v1.1'],
    takes: 'true or false',
    accepts: (value) => value === 'true' || value === 'false',
  },
  {
    name: 'session.charge.period',
    default: 'PT1H',
    versions: ['v1.1'],
    takes: 'an ISO 8601 duration of hours and minutes from PT10M to PT24H',
    accepts: (value) => chargePeriodMs(value) !== undefined,
  },
]

const MINUTE_MS = 60_000

/** Milliseconds of `PTnH`, `PTnM` or `PTnHnM`, from 10 minutes to 24 hours; undefined for anything else. */
export function chargePeriodMs(text: string): number | undefined {
  const match = /^PT(?:(\d{1,4})H)?(?:(\d{1,4})M)?$/.exec(text)
  if (match === null || (match[1] ?? match[2]) === undefined) return undefined
  const minutes = Number(match[1] ?? 0) * 60 + Number(match[2] ?? 0)
  return minutes >= 10 && minutes <= 24 * 60 ? minutes * MINUTE_MS : undefined
}

const change = z
  .strictObject({
    name: z.string().max(256),
    value: z.union([z.string().max(256), z.boolean().transform(String)]),
    modified: readOnlyField,
    updatedBy: readOnlyField,
  })
  .meta({ id: 'ConfigurationChange' })

export const configurationBody = z.union([
  z
    .array(change)
    .min(1)
    .max(100)
    .refine((changes) => new Set(changes.map(({ name }) => name)).size === changes.length, {
      message: 'must not contain the same name twice',
    }),
  change.transform((one) => [one]),
])

export function configurationProblem(version: ApiVersion, { name, value }: z.infer<typeof change>): string | undefined {
  const known = CONFIGURATION.filter(({ versions }) => versions.includes(version))
  const definition = known.find((each) => each.name === name)
  if (definition === undefined) {
    const names = known.map((each) => each.name).join(', ')
    return `unknown configuration value ${JSON.stringify(name)}. Known: ${names}`
  }
  return definition.accepts(value) ? undefined : `${name} must be ${definition.takes}`
}

const configurationValue = z
  .strictObject({
    name: z.string(),
    value: z.string(),
    modified: instant.optional(),
    updatedBy: z.string().optional(),
  })
  .meta({
    id: 'ConfigurationValue',
    description: '`modified` and `updatedBy` (key id) are present after a change.',
  })
export type ConfigurationValueWire = z.infer<typeof configurationValue>

export const configurationValues = z.array(configurationValue)
