// Requests made from the documents of the API: of the form that an operation takes, almost of that form, and hostile.
import fc from '../../support/fast-check.ts'
import { pick } from '../harness.ts'

type Schema = Readonly<Record<string, unknown>>

/** What a request may name: ids that exist, and words that mean something somewhere. */
export interface Vocabulary {
  readonly uuids: readonly string[]
  readonly words: readonly string[]
}

export type Token = 'admin' | 'client' | 'device' | 'none' | 'garbage'

export interface Hostile {
  readonly method: string
  readonly path: string
  readonly token: Token
  readonly headers: Readonly<Record<string, string | string[]>>
  readonly body: Buffer | null
  /** The body ends before the length that was declared. */
  readonly truncated: boolean
}

const HOSTILE: readonly unknown[] = [
  null,
  true,
  -1,
  0,
  1e308,
  -1e308,
  1e-300,
  9_007_199_254_740_993,
  Number.MAX_SAFE_INTEGER,
  253_402_300_800_000,
  '',
  '\u0000',
  '\uD800',
  '__proto__',
  'constructor',
  '../../etc/passwd',
  "'; DROP TABLE instances; --",
  '%',
  '𝒳'.repeat(600),
  'x'.repeat(20_000),
  [],
  {},
  [[]],
  deep(70),
  deep(2_000),
]

function deep(levels: number): unknown {
  return JSON.parse('['.repeat(levels) + ']'.repeat(levels))
}

/** Values of the form of a schema. @param depth how many references may still be followed */
function valuesOf(document: unknown, schema: Schema, words: Vocabulary, depth = 4): fc.Arbitrary<unknown> {
  const inner = (each: unknown): fc.Arbitrary<unknown> => valuesOf(document, each as Schema, words, depth)
  const { $ref, type, items, properties } = schema
  if (typeof $ref === 'string') {
    if (depth === 0) return fc.constantFrom(...HOSTILE)
    return valuesOf(document, pick(document, ...$ref.slice(2).split('/')) as Schema, words, depth - 1)
  }
  if (schema['const'] !== undefined) return fc.constant(schema['const'])
  if (Array.isArray(schema['enum'])) return fc.constantFrom(...(schema['enum'] as unknown[]))
  const choices = schema['anyOf'] ?? schema['oneOf']
  if (Array.isArray(choices)) return fc.oneof(...choices.map(inner))
  if (Array.isArray(type)) return fc.oneof(...type.map((one: unknown) => inner({ ...schema, type: one })))
  switch (type) {
    case 'null':
      return fc.constant(null)
    case 'boolean':
      return fc.boolean()
    case 'integer':
    case 'number': {
      const min = Number(schema['minimum'] ?? schema['exclusiveMinimum'] ?? -10)
      const max = Number(schema['maximum'] ?? Number.MAX_SAFE_INTEGER)
      const small = fc.integer({ min: Math.ceil(min), max: Math.min(max, Math.ceil(min) + 50) })
      const any =
        type === 'integer'
          ? fc.integer({ min: Math.ceil(min), max: Math.floor(max) })
          : fc.double({ min, max, noNaN: true })
      return fc.oneof({ weight: 4, arbitrary: small }, { weight: 1, arbitrary: any })
    }
    case 'string': {
      if (schema['format'] === 'uuid') return fc.constantFrom(...words.uuids)
      if (typeof schema['pattern'] === 'string') return fc.stringMatching(new RegExp(schema['pattern']))
      return fc.oneof(
        { weight: 4, arbitrary: fc.constantFrom(...words.words) },
        fc.string({ unit: 'grapheme', maxLength: 12 }),
      )
    }
    case 'array': {
      const minLength = Number(schema['minItems'] ?? 0)
      return fc.array(inner(items), { minLength, maxLength: minLength + 3 })
    }
    default: {
      const entries = Object.entries((properties ?? {}) as Record<string, unknown>)
      if (entries.length === 0)
        return fc.dictionary(fc.constantFrom(...words.words), fc.oneof(fc.string(), fc.integer()), { maxKeys: 3 })
      const requiredKeys = (schema['required'] ?? []) as string[]
      return fc.record(Object.fromEntries(entries.map(([key, each]) => [key, inner(each)])), { requiredKeys })
    }
  }
}

/** The value with something inside replaced, removed or added. */
function mutated(value: unknown): fc.Arbitrary<unknown> {
  const places: (readonly (string | number)[])[] = [[]]
  const walk = (inner: unknown, path: readonly (string | number)[]): void => {
    if (typeof inner !== 'object' || inner === null || path.length > 6) return
    for (const [key, each] of Object.entries(inner)) {
      places.push([...path, key])
      walk(each, [...path, key])
    }
  }
  walk(value, [])
  return fc
    .tuple(fc.constantFrom(...places), fc.constantFrom(...HOSTILE), fc.constantFrom('replace', 'remove', 'add'))
    .map(([path, hostile, how]) => {
      const copy: unknown = structuredClone(value)
      const [last, ...rest] = path.toReversed()
      if (last === undefined) return how === 'replace' ? hostile : copy
      const parent = pick(copy, ...rest.toReversed()) as Record<string | number, unknown>
      if (how === 'remove') Reflect.deleteProperty(parent, last)
      else if (how === 'add') parent['surprise'] = hostile
      else parent[last] = hostile
      return copy
    })
}

/** Text of a body: JSON as it should be, or broken in one of the ways in which text can be. */
function bodies(values: fc.Arbitrary<unknown>): fc.Arbitrary<Buffer> {
  const json = values.map((value) => JSON.stringify(value))
  return fc.oneof(
    { weight: 6, arbitrary: json.map((text) => Buffer.from(text)) },
    { weight: 5, arbitrary: values.chain(mutated).map((value) => Buffer.from(JSON.stringify(value))) },
    { weight: 1, arbitrary: json.map((text) => Buffer.from(text.replace('{', '{"__proto__":{"a":1},'))) },
    { weight: 1, arbitrary: json.map((text) => Buffer.from(text.slice(0, text.length / 2))) },
    { weight: 1, arbitrary: json.map((text) => Buffer.concat([Buffer.from(text), Buffer.from([0xff, 0xfe, 0x22])])) },
    { weight: 1, arbitrary: json.map((text) => Buffer.from(text.replace(/\d+/, '1e999'))) },
    {
      weight: 1,
      arbitrary: fc.constantFrom('', '"', 'NaN', '{"a":1,}', '[1', '\u0000').map((text) => Buffer.from(text)),
    },
  )
}

const orHostile = (values: fc.Arbitrary<unknown>, weight = 8): fc.Arbitrary<string> =>
  fc.oneof(
    { weight, arbitrary: values.map(String) },
    {
      weight: 1,
      arbitrary: fc
        .constantFrom(...HOSTILE)
        .map((value) => (typeof value === 'string' ? value : JSON.stringify(value)).slice(0, 2_000)),
    },
  )

/** Encoded for a URL; what cannot be encoded is left as text that is not well-formed. */
function encoded(text: string): string {
  return text.isWellFormed() ? encodeURIComponent(text) : '%zz'
}

/** Requests to one operation. */
function requestsTo(
  document: unknown,
  path: string,
  method: string,
  operation: Schema,
  words: Vocabulary,
): fc.Arbitrary<Hostile> {
  const server = String(pick(document, 'servers', 0, 'url'))
  const paths = [path, ...((operation['x-also-at'] ?? []) as string[])]
  const parameters = operation['parameters'] as { name: string; in: string; schema: Schema }[]
  const of = (place: string) =>
    Object.fromEntries(
      parameters
        .filter((each) => each.in === place)
        .map(({ name, schema }) => [name, orHostile(valuesOf(document, schema, words))]),
    )
  const schema = pick(operation, 'requestBody', 'content', 'application/json', 'schema') as Schema | undefined
  const noBody = fc.constant(null)
  const body = schema === undefined ? noBody : bodies(valuesOf(document, schema, words))
  const kinds = (operation['security'] as Record<string, unknown>[]).flatMap(Object.keys)
  const fitting: Token = kinds.includes('DeviceToken') ? 'device' : 'admin'
  return fc
    .record({
      path: fc.constantFrom(...paths),
      inPath: fc.record(of('path')),
      query: fc.record(of('query'), { requiredKeys: [] }),
      inHeader: fc.record(of('header'), { requiredKeys: [] }),
      more: fc.oneof(
        { weight: 12, arbitrary: fc.constant('') },
        fc.constantFrom('?', '?a=1', '?next=1&next=2', '?__proto__=1', '?size=%00'),
      ),
      method: fc.oneof(
        { weight: 20, arbitrary: fc.constant(method) },
        fc.constantFrom('GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'HEAD'),
      ),
      token: fc.oneof(
        { weight: 16, arbitrary: fc.constant(fitting) },
        { weight: 4, arbitrary: fc.constant<Token>('client') },
        fc.constantFrom<Token>('none', 'garbage', 'device', 'admin'),
      ),
      type: fc.oneof(
        { weight: 20, arbitrary: fc.constant<string | string[]>('application/json') },
        fc.constantFrom<string | string[]>(
          'text/plain',
          'application/json; charset=utf-16',
          'multipart/form-data',
          '',
          'application/xml',
        ),
      ),
      body: fc.oneof({ weight: 20, arbitrary: body }, schema === undefined ? bodies(fc.jsonValue()) : noBody),
      instances: fc.constantFrom<string[]>([], [], [], ['x', 'y']),
      truncated: fc.integer({ min: 0, max: 40 }).map((number) => number === 0),
    })
    .map((made) => {
      const filled = made.path.replaceAll(/\{(\w+)\}/g, (_whole, name: string) =>
        encoded(String(pick(made.inPath, name))),
      )
      const query = Object.entries(made.query).map(([name, value]) => `${name}=${encoded(String(value))}`)
      const search = query.length > 0 ? `?${query.join('&')}` : made.more
      const headers = Object.entries(made.inHeader).map(([name, value]): [string, string] => [
        name,
        String(value).replaceAll(/[^ -~]/g, '?'),
      ])
      return {
        method: made.method,
        path: `${server}${filled}${search}`,
        token: made.token,
        headers: {
          ...Object.fromEntries(headers),
          ...(made.instances.length === 0 ? {} : { 'x-instance-id': made.instances }),
          ...(made.body === null ? {} : { 'content-type': made.type }),
        },
        body: made.body,
        truncated: made.truncated && made.body !== null && made.body.length > 1,
      }
    })
}

/** Requests to every operation of the documents. */
export function requests(documents: readonly unknown[], words: Vocabulary): fc.Arbitrary<Hostile> {
  return fc.oneof(
    ...documents.flatMap((document) =>
      Object.entries(pick(document, 'paths') as Record<string, Record<string, Schema>>).flatMap(([path, methods]) =>
        Object.entries(methods).map(([method, operation]) =>
          requestsTo(document, path, method.toUpperCase(), operation, words),
        ),
      ),
    ),
  )
}
