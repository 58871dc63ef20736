// A strict reader of the text format of Prometheus, as its specification has it: what a scraper would refuse, or silently take
// for something else, throws here.

export interface Family {
  readonly type: string
  readonly help: string
  readonly samples: readonly Sample[]
}

export interface Sample {
  readonly name: string
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
}

const NAME = /^[a-zA-Z_:][a-zA-Z0-9_:]*/
const LABEL = /^([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"/
const VALUE = /^ ([+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|NaN)$/i
const TYPES = ['counter', 'gauge', 'histogram', 'summary', 'untyped']
const SUFFIXES: Readonly<Record<string, readonly string[]>> = {
  histogram: ['_bucket', '_sum', '_count'],
  summary: ['', '_sum', '_count'],
}

/** @throws Error with the line that is not well-formed */
export function parsePrometheusText(text: string): ReadonlyMap<string, Family> {
  if (!text.endsWith('\n')) throw new Error('the last line does not end')
  const families = new Map<string, { type: string; help: string; samples: Sample[] }>()
  let current: { name: string; family: { type: string; help: string; samples: Sample[] } } | undefined
  const seen = new Set<string>()
  for (const line of text.slice(0, -1).split('\n')) {
    if (line === '') continue
    const wrong = (why: string) => new Error(`${why}: ${line}`)
    const comment = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line)
    if (comment !== null) {
      const [, kind, name = '', rest = ''] = comment
      if (NAME.exec(name)?.[0] !== name) throw wrong('not a name')
      if (kind === 'HELP') {
        if (families.has(name)) throw wrong('a family twice')
        current = { name, family: { type: '', help: rest, samples: [] } }
        families.set(name, current.family)
      } else {
        if (current?.name !== name || current.family.type !== '') throw wrong('a type without its help before it')
        if (!TYPES.includes(rest)) throw wrong('no such type')
        current.family.type = rest
      }
      continue
    }
    if (line.startsWith('#')) throw wrong('a comment')
    const name = NAME.exec(line)?.[0]
    if (name === undefined || current === undefined || current.family.type === '') throw wrong('a sample of no family')
    const suffixes = SUFFIXES[current.family.type] ?? ['']
    if (!suffixes.some((suffix) => `${String(current?.name)}${suffix}` === name)) throw wrong('of another family')
    const { labels, rest } = readLabels(line.slice(name.length), wrong)
    const value = VALUE.exec(rest)?.[1]
    if (value === undefined) throw wrong('no value')
    const series = `${name} ${JSON.stringify(Object.entries(labels).sort())}`
    if (seen.has(series)) throw wrong('a series twice')
    seen.add(series)
    current.family.samples.push({ name, labels, value: Number(value.replace('Inf', 'Infinity')) })
  }
  for (const [name, { type, help, samples }] of families) {
    if (type === '' || help === '') throw new Error(`${name} has no type or no help`)
    if (type === 'counter' && !name.endsWith('_total')) throw new Error(`${name} is a counter by another name`)
    if (type !== 'counter' && name.endsWith('_total')) throw new Error(`${name} is no counter`)
    if (type === 'histogram') checkBuckets(name, samples)
  }
  return families
}

/** The value of one series; 0 where a counter has none yet. */
export function valueOf(
  families: ReadonlyMap<string, Family>,
  name: string,
  labels: Readonly<Record<string, string>> = {},
): number {
  const family = families.get(name) ?? families.get(name.replace(/_(?:count|sum|bucket)$/, ''))
  if (family === undefined) throw new Error(`there is no family ${name}`)
  const wanted = JSON.stringify(Object.entries(labels).sort())
  const found = family.samples.find(
    (sample) => sample.name === name && JSON.stringify(Object.entries(sample.labels).sort()) === wanted,
  )
  return found?.value ?? 0
}

function readLabels(text: string, wrong: (why: string) => Error) {
  const labels: Record<string, string> = {}
  if (!text.startsWith('{')) return { labels, rest: text }
  let rest = text.slice(1)
  while (!rest.startsWith('}')) {
    const [whole, name = '', value = ''] = LABEL.exec(rest) ?? []
    if (whole === undefined) throw wrong('not a label')
    if (name in labels) throw wrong('a label twice')
    labels[name] = value.replace(/\\(.)/g, (_, char: string) => (char === 'n' ? '\n' : char))
    rest = rest.slice(whole.length)
    if (rest.startsWith(',')) rest = rest.slice(1)
    else if (!rest.startsWith('}')) throw wrong('labels without a comma')
  }
  return { labels, rest: rest.slice(1) }
}

function checkBuckets(name: string, samples: readonly Sample[]): void {
  const series = Map.groupBy(samples, ({ labels: { le: _, ...others } }) =>
    JSON.stringify(Object.entries(others).sort()),
  )
  for (const [labels, some] of series) {
    const buckets = some.filter((sample) => sample.name === `${name}_bucket`)
    const counts = buckets.map(({ value }) => value)
    const total = some.find((sample) => sample.name === `${name}_count`)?.value
    if (counts.some((count, at) => count < (counts[at - 1] ?? 0))) throw new Error(`${name} ${labels}: buckets fall`)
    if (buckets.at(-1)?.labels['le'] !== '+Inf' || counts.at(-1) !== total)
      throw new Error(`${name} ${labels}: no +Inf`)
  }
}
