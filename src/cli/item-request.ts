import type { Command } from 'commander'
import { countArgument, pairArgument } from './arguments.ts'
import { collect } from './collect.ts'
import { CodedError } from '../protocol/errors.ts'

export interface ItemRequestFlags {
  readonly itemVersion?: string
  readonly count: number
  readonly requester: readonly [type: string, value: string]
  readonly attribute?: readonly (readonly [key: string, value: string])[]
}

/** Adds all options but `--item`, which only some commands require. */
export function withItemRequest(command: Command): Command {
  return command
    .option('--item-version <version>', 'version of the item, exactly as in the rate table')
    .option('--count <number>', 'quantity of the item', countArgument, 1)
    .requiredOption(
      '--requester <type:value>',
      'requester, for example user:anna.keller',
      pairArgument(':', 'user:anna', 1),
    )
    .option(
      '--attribute <key=value>',
      'entry of the requester dictionary; can be repeated',
      collect(pairArgument('=', 'department=sales', 0)),
    )
}

export function itemRequestBody(
  item: string | undefined,
  { itemVersion, count, requester: [type, value], attribute }: ItemRequestFlags,
): { readonly requester: object; readonly requestedItems: readonly object[] } {
  const dictionary = attribute === undefined ? {} : { dictionary: dictionaryOf(attribute) }
  const version = itemVersion === undefined ? {} : { version: itemVersion }
  return {
    requester: { type, value, ...dictionary },
    requestedItems: item === undefined ? [] : [{ item, ...version, count }],
  }
}

function dictionaryOf(
  attributes: readonly (readonly [key: string, value: string])[],
): Readonly<Record<string, string>> {
  const entries = new Map<string, string>()
  for (const [key, value] of attributes) {
    if (entries.has(key)) throw new CodedError('USAGE', `Give the attribute ${key} only once.`)
    entries.set(key, value)
  }
  return Object.fromEntries(entries)
}
