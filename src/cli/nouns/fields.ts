import { type Command, InvalidArgumentError, Option } from 'commander'
import { parseDecimal } from '../../core/pricing/amount.ts'
import { timeArgument } from '../arguments.ts'
import type { Field } from './noun.ts'
import type { Row } from './service.ts'

export function addFieldOptions(command: Command, fields: readonly Field[]): void {
  for (const field of fields) {
    const option = new Option(field.flags, field.help)
    if (field.choices !== undefined) option.choices(field.choices)
    else option.argParser((text: string, before: unknown) => PARSERS[field.kind](text, before))
    command.addOption(option)
  }
}

export function withFlags(object: Row, fields: readonly Field[], flags: Readonly<Record<string, unknown>>): Row {
  return fields.reduce((row, { path, flags: declared }) => {
    const value = flags[new Option(declared).attributeName()]
    if (value === undefined) return row
    const [first = '', second] = path.split('.')
    if (second === undefined) return { ...row, [first]: value }
    return { ...row, [first]: { ...(row[first] as Row | undefined), [second]: value } }
  }, object)
}

const PARSERS: Readonly<Record<Field['kind'], (text: string, before: unknown) => unknown>> = {
  text: (text) => text,
  time: timeArgument,
  number: (text) => {
    if (parseDecimal(text) === undefined) throw new InvalidArgumentError('Use a number.')
    return Number(text)
  },
  boolean: (text) => {
    if (text !== 'true' && text !== 'false') throw new InvalidArgumentError('Use true or false.')
    return text === 'true'
  },
  words: (text) => text.split(','),
  rates: (text, before) => [...((before ?? []) as readonly Row[]), rateOf(text)],
}

/** `LaserCut@1.0=0.85` or `LaserCut=0.85` */
function rateOf(text: string): Row {
  const [, name, version, rate = ''] = /^([^@=]+)(?:@([^=]+))?=([\d.]+)$/.exec(text) ?? []
  if (name === undefined || parseDecimal(rate) === undefined)
    throw new InvalidArgumentError('Use an item with its rate, such as LaserCut@1.0=0.85.')
  return { name, ...(version === undefined ? {} : { version }), rate: Number(rate) }
}
