/**
 * What an operation promises, as data: what it takes, what it answers, which errors it may give. Requests are parsed by
 * it, answers can be checked against it, and the documents that describe the API are made from it. A schema of an answer
 * is read from the wire side: what it takes in is what is sent.
 */
import { z } from 'zod'
import { type ErrorCode, ERRORS } from '../../../protocol/errors.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

/** The same in each version, or told by the version. */
export type ByVersion<T> = T | ((version: ApiVersion) => T)

export interface AnswerForm {
  readonly description: string
  /** Undefined: no body. */
  readonly body?: z.ZodType
  /** Default: application/json. */
  readonly mediaType?: string
  /** In the place of a body: text that is too long to be held, in one of these media types. */
  readonly streams?: readonly string[]
  readonly example?: unknown
}

/** Answers by HTTP status. */
export type Answers = Readonly<Record<number, AnswerForm>>

export interface Declared {
  /** Unique in its API: the `operationId`. */
  readonly id: string
  readonly tag: string
  readonly summary: string
  readonly description?: string
  readonly answers: ByVersion<Answers>
  /** Codes besides those that every operation may give. */
  readonly errors?: readonly ErrorCode[]
  /** Of the request. */
  readonly example?: unknown
}

/** What an operation may give before its own work begins, or when its store fails. */
const EVERYWHERE: readonly ErrorCode[] = [
  'BAD_REQUEST',
  'TOKEN_MISSING',
  'TOKEN_INVALID',
  'TOKEN_NOT_IN_TIME',
  'ACCESS_KIND_WRONG',
  'DEVICE_REVOKED',
  'DEVICE_KEY_REPLACED',
  'INTERNAL',
  'KEY_BUSY',
  'OVERLOADED',
  'STOPPING',
  'DATABASE_UNREACHABLE',
  'DATABASE_REFUSED',
  'OUTCOME_UNKNOWN',
  'NOT_RECORDED',
  'STATE_UNWRITABLE',
  'DATABASE_CORRUPT',
]

/** What reading a body may give; one that is sent to a DELETE is read too. */
const OF_BODIES: readonly ErrorCode[] = ['BAD_JSON', 'BODY_TOO_LARGE', 'MEDIA_TYPE_NOT_SUPPORTED']

/** All codes that an operation may give. */
export function errorCodes(method: Method, own: readonly ErrorCode[]): readonly ErrorCode[] {
  return [...new Set([...EVERYWHERE, ...(method === 'GET' ? [] : OF_BODIES), ...own])]
}

/** The error body with one of these codes. */
function errorForm(codes: readonly ErrorCode[]): z.ZodType {
  return z.strictObject({ message: z.string(), code: z.enum(codes) })
}

/** Codes by the HTTP status that they leave with. */
export function codesByStatus(codes: readonly ErrorCode[]): ReadonlyMap<number, readonly ErrorCode[]> {
  return Map.groupBy(codes, (code) => ERRORS[code].http)
}

export function at<T>(version: ApiVersion, value: ByVersion<T>): T {
  return typeof value === 'function' ? (value as (version: ApiVersion) => T)(version) : value
}

/** One status: any of the bodies, where there are several. */
export interface StatusForm {
  readonly mediaType: string
  readonly bodies: readonly z.ZodType[]
  readonly streams: readonly string[]
}

/** Everything that an operation may answer, by status. */
export type DeclaredAnswers = ReadonlyMap<number, StatusForm>

export function declaredAnswers(method: Method, answers: Answers, errors: readonly ErrorCode[]): DeclaredAnswers {
  const byStatus = codesByStatus(errorCodes(method, errors))
  const statuses = new Set([...Object.keys(answers).map(Number), ...byStatus.keys()])
  return new Map(
    [...statuses].map((status) => {
      const form = answers[status]
      const codes = byStatus.get(status)
      const bodies = [
        ...(form?.body === undefined ? [] : [form.body]),
        ...(codes === undefined ? [] : [errorForm(codes)]),
      ]
      return [status, { mediaType: form?.mediaType ?? 'application/json', bodies, streams: form?.streams ?? [] }]
    }),
  )
}
