/** Labels of devices: `site=berlin`. Administrators choose them, to find and command groups of devices. */
import { z } from 'zod'
import { CodedError } from '../errors.ts'

export const LABELS_MAX = 16

const LENGTH_MAX = 63

const RULE = `must have 1 to ${LENGTH_MAX} letters, digits and . _ : / @ + -, and begin with a letter or digit`
const PART = /^[\p{L}\p{N}][\p{L}\p{N}\p{M}._:/@+-]*$/u

const part = z
  .string()
  .max(4 * LENGTH_MAX)
  .transform((text) => text.normalize('NFC'))
  .refine((text) => PART.test(text) && Array.from(text).length <= LENGTH_MAX, RULE)
  .meta({ wire: { type: 'string', minLength: 1, maxLength: LENGTH_MAX } })

export type Labels = Readonly<Record<string, string>>

export interface Label {
  readonly key: string
  readonly value: string
}

export const labels = z
  .record(part, part)
  .refine((given) => Object.keys(given).length <= LABELS_MAX, `must have at most ${LABELS_MAX} labels`)
  .meta({ id: 'Labels', description: `Up to ${LABELS_MAX} labels of a device, by key.` })

/** Body of `POST .../edge/api/v1/devices/{deviceId}/labels`. Labels that it does not name stay. */
export const labelChange = z
  .strictObject({
    set: labels.optional(),
    remove: z.array(part).max(LABELS_MAX).optional(),
  })
  .meta({ id: 'LabelChange' })

/** Parses `key=value`. @throws CodedError LABEL_INVALID */
export function parseLabel(text: string): Label {
  const at = text.indexOf('=')
  const key = part.safeParse(text.slice(0, Math.max(0, at)))
  const value = part.safeParse(text.slice(at + 1))
  if (key.success && value.success && at > 0) return { key: key.data, value: value.data }
  const problem = at < 0 ? 'it has no =' : `its ${key.success ? 'value' : 'key'} ${RULE}`
  throw new CodedError('LABEL_INVALID', `The label ${JSON.stringify(text)} is not valid: ${problem}.`)
}

/** Parses a key. @throws CodedError LABEL_INVALID */
export function parseLabelKey(text: string): string {
  const key = part.safeParse(text)
  if (key.success) return key.data
  throw new CodedError('LABEL_INVALID', `The key ${JSON.stringify(text)} of a label is not valid: it ${RULE}.`)
}

/** Labels in the form of {@link parseLabel}, separated by white space or commas. @throws CodedError LABEL_INVALID */
export function parseLabels(text: string): readonly Label[] {
  return text
    .split(/[\s,]+/)
    .filter((each) => each !== '')
    .map(parseLabel)
}

/** A selection in a query: `site=berlin,line=3`. */
export const labelsQuery = z
  .string()
  .max(LABELS_MAX * 2 * (4 * LENGTH_MAX + 1))
  .transform((text, context) => {
    try {
      return parseLabels(text)
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      context.addIssue({ code: 'custom', message: error.message })
      return z.NEVER
    }
  })
  .refine((found) => found.length <= LABELS_MAX, `must have at most ${LABELS_MAX} labels`)
  .meta({ wire: { type: 'string' } })

/** The labels that {@link labelsText} writes. @throws CodedError LABEL_INVALID */
export function labelsIn(text: string): Labels {
  const labels: Record<string, string> = {}
  for (const { key, value } of parseLabels(text)) {
    if (Object.hasOwn(labels, key)) throw new CodedError('LABEL_INVALID', `The label ${key} has several values.`)
    labels[key] = value
  }
  return labels
}

export function labelsText(given: Labels): string {
  return Object.entries(given)
    .map(([key, value]) => `${key}=${value}`)
    .join(' ')
}

/**
 * The labels after a change, sorted by key.
 * @throws CodedError LABEL_INVALID for more than {@link LABELS_MAX}, or one that is both set and removed
 */
export function changedLabels(before: Labels, { set = {}, remove = [] }: z.infer<typeof labelChange>): Labels {
  const both = remove.find((key) => Object.hasOwn(set, key))
  if (both !== undefined) {
    throw new CodedError('LABEL_INVALID', `The label ${both} cannot be set and removed at once.`)
  }
  const kept = Object.entries({ ...before, ...set }).filter(([key]) => !remove.includes(key))
  if (kept.length > LABELS_MAX) {
    throw new CodedError('LABEL_INVALID', `The device would have ${kept.length} labels. It can have ${LABELS_MAX}.`)
  }
  return Object.fromEntries(kept.sort(([one], [other]) => (one < other ? -1 : 1)))
}
