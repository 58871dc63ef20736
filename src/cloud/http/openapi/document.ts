/** Operations as one OpenAPI 3.1 document. */
import { STATUS_CODES } from 'node:http'
import { z } from 'zod'
import { type ErrorCode, ERRORS } from '../../../protocol/errors.ts'
import { codesByStatus } from '../declared-answers.ts'
import type { AnswerForm, Method } from '../operation.ts'
import { COMPONENTS, Components, type Json, type JsonSchema } from './render-schema.ts'

export interface Title {
  readonly title: string
  readonly version: string
  readonly description: string
  /** Path of the server. */
  readonly server: string
  /** URL of the error code page. */
  readonly errorsUrl: string
}

export const SCHEMES = {
  AdministrationAccess: 'A JWT signed with the private key of a registered administration key; `cnf.jwk.kty` is ADMIN.',
  AdministrationAccessBasic: 'The same JWT as the password, with any user name.',
  ClientAccess:
    'A JWT signed with the private key of a registered client key; `cnf.jwk.kty` is CLIENT, and `aud` lists the instances.',
  DeviceToken: 'A JWT signed with the key of the device.',
  EnrollmentToken: 'The one-time token that an administrator created.',
} as const

/** An optional header. */
export interface HeaderForm {
  readonly description: string
  readonly schema: z.ZodType
}

/** An operation as the document shows it. */
export interface DescribedOperation {
  readonly id: string
  readonly tag: string
  readonly summary: string
  readonly description: string
  readonly method: Method
  /** Templates such as `/sessions/{sessionId}`; the others are equivalent to the first. */
  readonly paths: readonly string[]
  /** Each is sufficient, with the scopes that it needs. Empty: no token is needed. */
  readonly security: readonly (readonly [scheme: keyof typeof SCHEMES, scopes: readonly string[]])[]
  readonly params?: z.ZodType | undefined
  readonly query?: z.ZodType | undefined
  readonly headers: Readonly<Record<string, HeaderForm>>
  readonly body?: z.ZodType | undefined
  readonly example?: unknown
  readonly answers: Readonly<Record<number, AnswerForm & { readonly headers?: Readonly<Record<string, HeaderForm>> }>>
  readonly codes: readonly ErrorCode[]
}

/** @throws Error if two operations share an id, or path and method */
export function openApiDocument(title: Title, operations: readonly DescribedOperation[]): JsonSchema {
  const made: Made = { components: new Components(), responses: new Responses() }
  const paths: Record<string, Record<string, Json>> = {}
  const ids = new Set<string>()
  for (const operation of operations) {
    const { id, method } = operation
    if (ids.has(id)) throw new Error(`invariant: two operations are called ${id}`)
    ids.add(id)
    const [address] = operation.paths
    if (address === undefined) throw new Error(`invariant: ${id} is served somewhere`)
    const path = (paths[address] ??= {})
    if (method.toLowerCase() in path) {
      throw new Error(`invariant: two operations answer ${method.toLowerCase()} ${address}`)
    }
    path[method.toLowerCase()] = describe(operation, made)
  }
  made.components.render(
    z.strictObject({ message: z.string(), code: z.string() }).meta({ id: 'Error', description: ERROR }),
  )
  const schemes = new Set(operations.flatMap(({ security }) => security.map(([scheme]) => scheme)))
  return {
    openapi: '3.1.1',
    info: {
      title: title.title,
      version: title.version,
      description: title.description,
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    externalDocs: { description: 'Error codes', url: title.errorsUrl },
    servers: [{ url: title.server }],
    tags: [...new Set(operations.map(({ tag }) => tag))].map((name) => ({ name })),
    paths,
    components: {
      schemas: sorted(made.components.schemas),
      responses: sorted(made.responses.shared),
      ...(schemes.size === 0 ? {} : { securitySchemes: Object.fromEntries([...schemes].map(schemeForm)) }),
    },
  }
}

function schemeForm(name: keyof typeof SCHEMES): readonly [string, JsonSchema] {
  const description = SCHEMES[name]
  if (name === 'AdministrationAccessBasic') return [name, { type: 'http', scheme: 'basic', description }]
  return [name, { type: 'http', scheme: 'bearer', bearerFormat: 'JWT', description }]
}

const ERROR = 'A message for this occurrence, and the error code.'

/** The document being made. */
interface Made {
  readonly components: Components
  readonly responses: Responses
}

function describe(operation: DescribedOperation, made: Made): Json {
  const { id, tag, summary, description, paths, security, body, example } = operation
  const others = paths.slice(1)
  const also = others.length === 0 ? [] : [`Also served at ${others.map((path) => `\`${path}\``).join(', ')}.`]
  const words = [...(description === '' ? [] : [description]), ...also].join('\n\n')
  return {
    operationId: id,
    tags: [tag],
    summary,
    ...(words === '' ? {} : { description: words }),
    security: security.map(([scheme, scopes]) => ({ [scheme]: scopes })),
    parameters: parametersOf(operation, made),
    ...(body === undefined
      ? {}
      : {
          requestBody: {
            required: true,
            content: {
              'application/json': {
                schema: made.components.render(body),
                ...(example === undefined ? {} : { example: example as Json }),
              },
            },
          },
        }),
    responses: responsesOf(operation, made),
    ...(others.length === 0 ? {} : { 'x-also-at': others }),
  }
}

function parametersOf({ params, query, headers }: DescribedOperation, { components }: Made): Json {
  const list = (place: string, schema: z.ZodType | undefined): Json[] => {
    if (schema === undefined) return []
    const { properties = {}, required = [] } = components.render(schema) as {
      readonly properties?: Readonly<Record<string, JsonSchema>>
      readonly required?: readonly string[]
    }
    return Object.entries(properties).map(([name, form]) => ({
      name,
      in: place,
      required: required.includes(name),
      schema: form,
    }))
  }
  const inHeader = Object.entries(headers).map(([name, { description, schema }]) => ({
    name,
    in: 'header',
    required: false,
    description,
    schema: components.render(schema),
  }))
  return [...list('path', params), ...list('query', query), ...inHeader]
}

function responsesOf({ answers, codes: all }: DescribedOperation, { components, responses: shared }: Made): Json {
  const byStatus = codesByStatus(all)
  const statuses = [...new Set([...Object.keys(answers).map(Number), ...byStatus.keys()])].sort((a, b) => a - b)
  return Object.fromEntries(
    statuses.map((status): [string, Json] => {
      const codes = byStatus.get(status) ?? []
      const form = answers[status]
      if (form === undefined) return [String(status), shared.ofCodes(status, codes)]
      const bodies = form.body === undefined ? [] : [components.render(form.body)]
      const schemas = [...bodies, ...(codes.length === 0 ? [] : [errorSchema(codes)])]
      const [only] = schemas
      const schema = schemas.length === 1 && only !== undefined ? only : { anyOf: schemas }
      const example = form.example === undefined ? {} : { example: form.example as Json }
      const mediaTypes: readonly [string, Json][] =
        form.streams === undefined
          ? [[form.mediaType ?? 'application/json', { schema, ...example }]]
          : form.streams.map((type) => [type.replace(/;.*/, ''), { schema: { type: 'string' } }])
      const content = Object.fromEntries(mediaTypes)
      const description = [form.description, ...(codes.length === 0 ? [] : [listOf(codes)])].join('\n\n')
      return [
        String(status),
        {
          description,
          ...(form.headers === undefined ? {} : { headers: headerForms(form.headers, components) }),
          ...(schemas.length + (form.streams?.length ?? 0) === 0 ? {} : { content }),
        },
      ]
    }),
  )
}

function headerForms(headers: Readonly<Record<string, HeaderForm>>, components: Components): Json {
  return Object.fromEntries(
    Object.entries(headers).map(([name, { description, schema }]) => [
      name,
      { description, schema: components.render(schema) },
    ]),
  )
}

/** Deduplicated error responses. */
class Responses {
  readonly shared = new Map<string, JsonSchema>()
  readonly #names = new Map<string, string>()

  ofCodes(status: number, codes: readonly ErrorCode[]): Json {
    const known = this.#names.get(codes.join())
    const name = known ?? this.#add(status, codes)
    return { $ref: `#/components/responses/${name}` }
  }

  #add(status: number, codes: readonly ErrorCode[]): string {
    const plain = (STATUS_CODES[status] ?? String(status)).replaceAll(/[^A-Za-z]/g, '')
    const [only] = codes
    const name = codes.length === 1 && only !== undefined ? only : nameBeside(this.shared, plain)
    this.#names.set(codes.join(), name)
    const header = HEADERS[status]
    this.shared.set(name, {
      description: listOf(codes),
      ...(header === undefined ? {} : { headers: header }),
      content: {
        'application/json': {
          schema: errorSchema(codes),
          examples: Object.fromEntries(
            codes.map((code) => [
              code,
              { summary: ERRORS[code].remedy, value: { message: ERRORS[code].meaning, code } },
            ]),
          ),
        },
      },
    })
    return name
  }
}

const RETRY_AFTER: JsonSchema = {
  'Retry-After': { description: 'Seconds to wait.', schema: { type: 'integer', minimum: 0 } },
}

const HEADERS: Readonly<Record<number, JsonSchema>> = {
  401: {
    'WWW-Authenticate': { description: 'The accepted schemes.', schema: { type: 'string', example: 'Bearer' } },
  },
  405: { Allow: { description: 'The methods of this path.', schema: { type: 'string', example: 'GET, OPTIONS' } } },
  429: RETRY_AFTER,
  503: RETRY_AFTER,
}

function nameBeside(taken: ReadonlyMap<string, unknown>, name: string): string {
  for (let number = 1; ; number += 1) {
    const candidate = number === 1 ? name : `${name}${number}`
    if (!taken.has(candidate)) return candidate
  }
}

function errorSchema(codes: readonly ErrorCode[]): JsonSchema {
  return { allOf: [{ $ref: `${COMPONENTS}Error` }, { properties: { code: { enum: codes } } }] }
}

function listOf(codes: readonly ErrorCode[]): string {
  return codes.map((code) => `- \`${code}\`: ${ERRORS[code].meaning}`).join('\n')
}

function sorted(entries: ReadonlyMap<string, JsonSchema>): JsonSchema {
  return Object.fromEntries([...entries].sort(([a], [b]) => (a < b ? -1 : 1)))
}
