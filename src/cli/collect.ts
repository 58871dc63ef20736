/** Options that can be repeated collect their values. */
import type { Option } from 'commander'

type Collector<T> = (text: string, before: unknown) => readonly T[]

const collectors = new WeakSet<Collector<unknown>>()

export function collect<T>(parse: (text: string) => T): Collector<T> {
  const collector: Collector<T> = (text, before) => [...((before ?? []) as readonly T[]), parse(text)]
  collectors.add(collector)
  return collector
}

/** Whether the option takes one value. */
export function isSingle({ required, optional, parseArg }: Option): boolean {
  return (required || optional) && (parseArg === undefined || !collectors.has(parseArg as Collector<unknown>))
}
