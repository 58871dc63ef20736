/**
 * An operation's input, responses and errors as data, for parsing requests, checking responses and generating the API
 * documents. Response schemas describe the wire side.
 */
import { z } from 'zod'
import { type ErrorCode, ERRORS } from '../../protocol/errors.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

/** One value for all versions, or a function of the version. */
export type ByVersion<T> = T | ((version: ApiVersion) => T)

export interface AnswerForm {
  readonly description: string
  readonly body?: z.ZodType
  /** Default: application/json. */
  readonly mediaType?: string
  /** Instead of a body: long text is streamed in one of these media types. */
  readonly streams?: readonly string[]
  readonly example?: unknown
}

/** By HTTP status. */
export type Answers = Readonly<Record<number, AnswerForm>>

export interface Declared {
  /** The `operationId`, unique in its API. */
  readonly id: string
  readonly tag: string
  readonly summary: string
  readonly description?: string
  readonly answers: ByVersion<Answers>
  /** In addition to the codes of every operation. */
  readonly errors?: readonly ErrorCode[]
  readonly example?: unknown
}

/** Errors before the operation's own work, or of the store. */
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

/** Errors of reading a body, which DELETE does too. */
const OF_BODIES: readonly ErrorCode[] = ['BAD_JSON', 'BODY_TOO_LARGE', 'MEDIA_TYPE_NOT_SUPPORTED']

export function errorCodes(method: Method, own: readonly ErrorCode[]): readonly ErrorCode[] {
  return [...new Set([...EVERYWHERE, ...(method === 'GET' ? [] : OF_BODIES), ...own])]
}

function errorForm(codes: readonly ErrorCode[]): z.ZodType {
  return z.strictObject({ message: z.string(), code: z.enum(codes) })
}

export function codesByStatus(codes: readonly ErrorCode[]): ReadonlyMap<number, readonly ErrorCode[]> {
  return Map.groupBy(codes, (code) => ERRORS[code].http)
}

export function at<T>(version: ApiVersion, value: ByVersion<T>): T {
  return typeof value === 'function' ? (value as (version: ApiVersion) => T)(version) : value
}

/** One status; any of the bodies. */
export interface StatusForm {
  readonly mediaType: string
  readonly bodies: readonly z.ZodType[]
  readonly streams: readonly string[]
}

/** All responses by status. */
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
