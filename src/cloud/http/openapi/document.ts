/** Operations as one OpenAPI 3.1 document. */
import { STATUS_CODES } from 'node:http'
import { z } from 'zod'
import { type ErrorCode, ERRORS } from '../../../protocol/errors.ts'
import { type Answers, type Method, codesByStatus, errorCodes } from '../operation.ts'
import { COMPONENTS, Components, type Json, type JsonSchema } from './render-schema.ts'

export interface Described {
  readonly method: Method
  /** Relative to the server address, with `:name` for parameters. */
  readonly path: string
  /** Equivalent paths. */
  readonly alsoAt: readonly string[]
  readonly id: string
  readonly tag: string
  readonly summary: string
  readonly description: string | undefined
  /** Accepted security schemes. */
  readonly security: readonly (keyof typeof SCHEMES)[]
  readonly params: z.ZodType | undefined
  readonly query: z.ZodType | undefined
  /** Optional headers. */
  readonly headers: Readonly<Record<string, { readonly description: string; readonly schema: z.ZodType }>>
  readonly body: z.ZodType | undefined
  readonly example: unknown
  readonly answers: Answers
  /** In addition to the codes of every operation. */
  readonly errors: readonly ErrorCode[]
}

export interface Title {
  readonly title: string
  readonly version: string
  readonly description: string
  /** Path of the server. */
  readonly server: string
  /** URL of the error code page. */
  readonly errorsUrl: string
}

const SCHEMES = {
  AdministrationAccess: 'A JWT signed with the private key of a registered administration key; `cnf.jwk.kty` is ADMIN.',
  ClientAccess:
    'A JWT signed with the private key of a registered client key; `cnf.jwk.kty` is CLIENT, and `aud` lists the instances.',
  DeviceToken: 'A JWT signed with the key of the device.',
  EnrollmentToken: 'The one-time token that an administrator created.',
} as const

/** @throws Error if two operations share an id, or path and method */
export function openApiDocument(title: Title, operations: readonly Described[]): JsonSchema {
  const components = new Components()
  const responses = new Responses()
  const paths: Record<string, Record<string, Json>> = {}
  const ids = new Set<string>()
  for (const operation of operations) {
    if (ids.has(operation.id)) throw new Error(`invariant: two operations are called ${operation.id}`)
    ids.add(operation.id)
    const path = (paths[templateOf(operation.path)] ??= {})
    const method = operation.method.toLowerCase()
    if (method in path) throw new Error(`invariant: two operations answer ${method} ${operation.path}`)
    path[method] = describe(operation, components, responses)
  }
  components.render(z.strictObject({ message: z.string(), code: z.string() }).meta({ id: 'Error', description: ERROR }))
  const schemes = [...new Set(operations.flatMap(({ security }) => security))]
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
      schemas: sorted(components.schemas),
      responses: sorted(responses.shared),
      securitySchemes: Object.fromEntries(
        schemes.map((name) => [
          name,
          { type: 'http', scheme: 'bearer', bearerFormat: 'JWT', description: SCHEMES[name] },
        ]),
      ),
    },
  }
}

const ERROR = 'A message for this occurrence, and the error code.'

function describe(operation: Described, components: Components, responses: Responses): Json {
  const { id, tag, summary, description, security, alsoAt, body, example } = operation
  const also =
    alsoAt.length === 0 ? [] : [`Also served at ${alsoAt.map((path) => `\`${templateOf(path)}\``).join(', ')}.`]
  const words = [...(description === undefined ? [] : [description]), ...also].join('\n\n')
  return {
    operationId: id,
    tags: [tag],
    summary,
    ...(words === '' ? {} : { description: words }),
    security: security.map((name) => ({ [name]: [] })),
    parameters: parametersOf(operation, components),
    ...(body === undefined
      ? {}
      : {
          requestBody: {
            required: true,
            content: {
              'application/json': {
                schema: components.render(body),
                ...(example === undefined ? {} : { example: example as Json }),
              },
            },
          },
        }),
    responses: responsesOf(operation, components, responses),
    ...(alsoAt.length === 0 ? {} : { 'x-also-at': alsoAt.map(templateOf) }),
  }
}

function parametersOf({ params, query, headers }: Described, components: Components): Json {
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

function responsesOf({ method, answers, errors }: Described, components: Components, shared: Responses): Json {
  const byStatus = codesByStatus(errorCodes(method, errors))
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
        { description, ...(schemas.length + (form.streams?.length ?? 0) === 0 ? {} : { content }) },
      ]
    }),
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

const HEADERS: Readonly<Record<number, JsonSchema>> = {
  401: {
    'WWW-Authenticate': { description: 'The required scheme.', schema: { type: 'string', const: 'Bearer' } },
  },
  503: { 'Retry-After': { description: 'Seconds to wait.', schema: { type: 'integer', minimum: 0 } } },
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

function templateOf(path: string): string {
  return path.replaceAll(/:(\w+)/g, '{$1}')
}

function sorted(entries: ReadonlyMap<string, JsonSchema>): JsonSchema {
  return Object.fromEntries([...entries].sort(([a], [b]) => (a < b ? -1 : 1)))
}
