// The documents that describe the twin's APIs: valid, whole, and without a schema that says nothing.
import { Validator } from '@seriousme/openapi-schema-validator'
import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { generatedPages, servedOperations } from '../../../scripts/docs.ts'
import { describedAs } from '../../../src/cloud/http/openapi/documents.ts'
import { openApiDocument } from '../../../src/cloud/http/openapi/document.ts'
import { ADMINISTRATORS, edgeOperation } from '../../../src/cloud/http/operation.ts'
import { Components } from '../../../src/cloud/http/openapi/render-schema.ts'
import { pick } from '../harness.ts'

const documents = [...(await generatedPages())].filter(([path]) => path.startsWith('docs/reference/openapi/'))

/** Every object inside, with its path. */
function* objectsIn(value: unknown, path = ''): Generator<[path: string, object: Readonly<Record<string, unknown>>]> {
  if (typeof value !== 'object' || value === null) return
  if (!Array.isArray(value)) yield [path, value as Record<string, unknown>]
  for (const [key, inner] of Object.entries(value)) yield* objectsIn(inner, `${path}/${key}`)
}

describe.each(documents)('%s', (_path, text) => {
  const document = JSON.parse(text) as Record<string, unknown>

  it('is valid OpenAPI 3.1, and every reference leads somewhere', async () => {
    const validator = new Validator()
    const { valid, errors } = await validator.validate(structuredClone(document))
    expect({ valid, errors }).toEqual({ valid: true, errors: undefined })
    expect(validator.version).toBe('3.1')
    for (const [path, { $ref }] of objectsIn(document)) {
      if (typeof $ref !== 'string') continue
      expect(pick(document, ...$ref.replace('#/', '').split('/')), `${path} → ${$ref}`).toBeDefined()
    }
  })

  it('describes the permitted values of every field', () => {
    const empty = [...objectsIn(document)].filter(([, object]) => Object.keys(object).length === 0)
    expect(empty.map(([path]) => path)).toEqual([])
  })

  it('declares each parameter of a path', () => {
    for (const [path, operations] of Object.entries(document['paths'] as Record<string, Record<string, unknown>>)) {
      const wanted = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)
      for (const operation of Object.values(operations)) {
        const parameters = pick(operation, 'parameters') as { name: string; in: string; required: boolean }[]
        const inPath = parameters.filter((parameter) => parameter.in === 'path' && parameter.required)
        expect(inPath.map(({ name }) => name)).toEqual(wanted)
      }
    }
  })
})

describe('the callers of an operation', () => {
  it.each(servedOperations().map((operation) => [operation.id, operation] as const))(
    '%s: keys, or one kind of token holder',
    (_id, { principals, path }) => {
      const holders = principals.filter((kind) => kind === 'ENROLLMENT' || kind === 'INTRODUCED_DEVICE')
      expect(principals).toHaveLength(holders.length === 0 ? new Set(principals).size : 1)
      expect(principals).not.toEqual([])
      // The device in the path is all that such a token is compared with.
      if (principals.includes('INTRODUCED_DEVICE')) expect(path).toContain('/:deviceId/')
    },
  )
})

describe('a document', () => {
  it('is refused when two operations are called the same', () => {
    const operation = (id: string, path: string) =>
      describedAs(
        edgeOperation({
          id,
          path,
          method: 'GET',
          tag: 'A',
          summary: 'A',
          principals: ADMINISTRATORS,
          answers: { 204: { description: 'Nothing.' } },
          handle: async () => ({ status: 204 }),
        }),
        'v1',
      )
    const title = { title: 'A', version: 'v1', description: 'A', server: '/', errorsUrl: 'errors' }
    expect(() => openApiDocument(title, [operation('a', '/a'), operation('a', '/b')])).toThrow(
      'two operations are called a',
    )
    expect(() => openApiDocument(title, [operation('a', '/a'), operation('b', '/a')])).toThrow(
      'two operations answer get /edge/api/v1/a',
    )
  })

  it('is refused when two schemas are called the same', () => {
    const components = new Components()
    components.render(z.strictObject({ a: z.string() }).meta({ id: 'A' }))
    expect(() => components.render(z.strictObject({ b: z.string() }).meta({ id: 'A' }))).toThrow('two schemas')
  })

  it('shows values as they are sent: amounts as text, and numbers with their bounds', () => {
    const text = (name: string) => documents.find(([path]) => path.endsWith(name))?.[1] ?? ''
    const edge = JSON.parse(text('edge.json')) as unknown
    const account = pick(
      edge,
      'components',
      'schemas',
      'AccountLedger',
      'properties',
      'accounts',
      'items',
      'properties',
    )
    expect(pick(account, 'charged', 'type')).toBe('string')
    const limit = pick(JSON.parse(text('v1.1.json')), 'components', 'schemas', 'ConsumptionLimitToSave', 'properties')
    expect(pick(limit, 'limit')).toEqual({ type: 'number', exclusiveMinimum: 0 })
    expect(
      pick(JSON.parse(text('v1.0.json')), 'components', 'schemas', 'ItemToRequest', 'properties', 'variables'),
    ).toBe(undefined)
  })
})
