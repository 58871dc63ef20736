/** What is wrong with a field, as the end of a sentence. A message in a schema takes precedence. */
import { z } from 'zod'

z.config({ customError: problemText })

const TYPES: Readonly<Record<string, string>> = {
  string: 'text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  object: 'an object',
  record: 'an object',
}

function problemText(issue: z.core.$ZodRawIssue): string | undefined {
  switch (issue.code) {
    case 'invalid_type':
      return issue.input === undefined ? 'is missing' : `must be ${TYPES[issue.expected] ?? issue.expected}`
    case 'too_small':
      if (issue.exact === true) return `must have exactly ${sizeText(issue.origin, issue.minimum)}`
      if (!isCounted(issue.origin))
        return `must be ${issue.inclusive === false ? 'more than' : 'at least'} ${issue.minimum}`
      return issue.minimum === 1 ? 'must not be empty' : `must have at least ${sizeText(issue.origin, issue.minimum)}`
    case 'too_big':
      if (issue.exact === true) return `must have exactly ${sizeText(issue.origin, issue.maximum)}`
      if (!isCounted(issue.origin))
        return `must be ${issue.inclusive === false ? 'less than' : 'at most'} ${issue.maximum}`
      return `must have at most ${sizeText(issue.origin, issue.maximum)}`
    case 'invalid_format':
      return formatText(issue)
    case 'invalid_value':
      return `must be ${issue.values.length === 1 ? '' : 'one of '}${issue.values.map(String).join(', ')}`
    case 'invalid_union':
      // Of the field that selects the alternative.
      return Array.isArray(issue.options) ? `must be one of ${issue.options.map(String).join(', ')}` : undefined
    case 'unrecognized_keys':
      return `must not have ${keysText(issue.keys)}`
    default:
      return undefined
  }
}

const KEYS_SHOWN = 10

function keysText(keys: readonly string[]): string {
  const more = keys.length - KEYS_SHOWN
  return keys.slice(0, KEYS_SHOWN).join(', ') + (more > 0 ? ` and ${more} more` : '')
}

function isCounted(origin: string): boolean {
  return origin === 'string' || origin === 'array'
}

function sizeText(origin: string, size: number | bigint): string {
  const unit = origin === 'string' ? 'character' : 'element'
  return `${size} ${unit}${size === 1 ? '' : 's'}`
}

function formatText({ format, pattern }: { readonly format: string; readonly pattern?: unknown }): string | undefined {
  if (format === 'guid' || format === 'uuid') return 'must be a UUID'
  if (format === 'url') return 'must be a URL'
  return format === 'regex' ? `must match ${String(pattern)}` : undefined
}
