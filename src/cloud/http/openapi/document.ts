/** Operations as one OpenAPI 3.1 document. */
import { STATUS_CODES } from 'node:http'
import { z } from 'zod'
import { type ErrorCode, ERRORS } from '../../../protocol/errors.ts'
import { instanceHeader, openingHeader, openingKey } from '../../../protocol/service/sessions.ts'
import { uuid } from '../../../protocol/wire.ts'
import { type CallerKind, type Operation, addressesOf, at, codesByStatus, errorCodes, roleOf } from '../operation.ts'
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

const SCHEMES = {
  AdministrationAccess: 'A JWT signed with the private key of a registered administration key; `cnf.jwk.kty` is ADMIN.',
  AdministrationAccessBasic: 'The same JWT as the password, with any user name.',
  ClientAccess:
    'A JWT signed with the private key of a registered client key; `cnf.jwk.kty` is CLIENT, and `aud` lists the instances.',
  DeviceToken: 'A JWT signed with the key of the device.',
  EnrollmentToken: 'The one-time token that an administrator created.',
} as const

/** @throws Error if two operations share an id, or path and method */
export function openApiDocument(title: Title, operations: readonly Operation[]): JsonSchema {
  const { version } = title
  const made: Made = { version, components: new Components(), responses: new Responses() }
  const paths: Record<string, Record<string, Json>> = {}
  const ids = new Set<string>()
  for (const operation of operations) {
    if (ids.has(operation.id)) throw new Error(`invariant: two operations are called ${operation.id}`)
    ids.add(operation.id)
    const [address, ...others] = addressesOf(operation, version).map(templateOf)
    if (address === undefined) throw new Error(`invariant: ${operation.id} is served somewhere`)
    const path = (paths[address] ??= {})
    const method = operation.method.toLowerCase()
    if (method in path) throw new Error(`invariant: two operations answer ${method} ${address}`)
    path[method] = describe(operation, others, made)
  }
  made.components.render(
    z.strictObject({ message: z.string(), code: z.string() }).meta({ id: 'Error', description: ERROR }),
  )
  const schemes = [...new Set(operations.flatMap(schemesOf))]
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
      securitySchemes: Object.fromEntries(
        schemes.map((name) => [
          name,
          name === 'AdministrationAccessBasic'
            ? { type: 'http', scheme: 'basic', description: SCHEMES[name] }
            : { type: 'http', scheme: 'bearer', bearerFormat: 'JWT', description: SCHEMES[name] },
        ]),
      ),
    },
  }
}

const ERROR = 'A message for this occurrence, and the error code.'

/** The document being made. */
interface Made {
  readonly version: string
  readonly components: Components
  readonly responses: Responses
}

/** @param others equivalent paths */
function describe(operation: Operation, others: readonly string[], made: Made): Json {
  const { id, tag, summary, description, example } = operation
  const also = others.length === 0 ? [] : [`Also served at ${others.map((path) => `\`${path}\``).join(', ')}.`]
  const role = roleOf(operation)
  const needed = role === null || role === 'read' ? [] : [`Administrators need the role \`${role}\`.`]
  const words = [...(description === undefined ? [] : [description]), ...needed, ...also].join('\n\n')
  const body = operation.body === undefined ? undefined : at(made.version, operation.bodyForm ?? operation.body)
  return {
    operationId: id,
    tags: [tag],
    summary,
    ...(words === '' ? {} : { description: words }),
    security: schemesOf(operation).map((name) => ({
      [name]: name === 'AdministrationAccess' && needed.length > 0 ? [role] : [],
    })),
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

const SCHEME_OF: Readonly<Record<CallerKind, keyof typeof SCHEMES>> = {
  ADMINISTRATOR: 'AdministrationAccess',
  CLIENT: 'ClientAccess',
  DEVICE: 'DeviceToken',
  ENROLLMENT: 'EnrollmentToken',
  INTRODUCED_DEVICE: 'DeviceToken',
}

function schemesOf({ principals, basic = false }: Operation): readonly (keyof typeof SCHEMES)[] {
  return [...principals.map((kind) => SCHEME_OF[kind]), ...(basic ? (['AdministrationAccessBasic'] as const) : [])]
}

interface HeaderForm {
  readonly description: string
  readonly schema: z.ZodType
}

/** All headers are optional. */
function headersOf(operation: Operation): Readonly<Record<string, HeaderForm>> {
  const { principals, idempotent, conditional = false, gzip = false } = operation
  return {
    ...(principals.includes('CLIENT') ? { [instanceHeader]: INSTANCE_HEADER } : {}),
    ...(idempotent === undefined ? {} : { [openingHeader]: { description: idempotent, schema: openingKey } }),
    ...(conditional ? { 'if-none-match': REVISION_HEADER } : {}),
    ...(gzip ? { 'content-encoding': GZIP_HEADER } : {}),
  }
}

const INSTANCE_HEADER = {
  description: 'The instance of the call. Client tokens require it on session operations, and must list it in `aud`.',
  schema: uuid,
}
const REVISION_HEADER = { description: "The ETag of the device's revision.", schema: z.string() }
const GZIP_HEADER = { description: 'Compression of the body.', schema: z.enum(['gzip', 'identity']) }

function parametersOf(operation: Operation, { components }: Made): Json {
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
  const inHeader = Object.entries(headersOf(operation)).map(([name, { description, schema }]) => ({
    name,
    in: 'header',
    required: false,
    description,
    schema: components.render(schema),
  }))
  return [...list('path', operation.params), ...list('query', operation.query), ...inHeader]
}

function responsesOf(operation: Operation, { version, components, responses: shared }: Made): Json {
  const { method, errors } = operation
  const answers = at(version, operation.answers)
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
