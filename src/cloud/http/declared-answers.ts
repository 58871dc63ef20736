/** The responses that an operation can send: its own, and the errors that it or any operation can respond with. */
import { z } from 'zod'
import { type ErrorCode, ERRORS } from '../../protocol/errors.ts'
import type { Answers, Method } from './operation.ts'

/** Errors before the operation's own work, or of the store. */
const EVERYWHERE: readonly ErrorCode[] = [
  'BAD_REQUEST',
  'EXPECTATION_UNKNOWN',
  'TRANSFER_CODING_UNKNOWN',
  'TOKEN_MISSING',
  'TOKEN_INVALID',
  'TOKEN_NOT_IN_TIME',
  'ACCESS_KIND_WRONG',
  'ROLE_MISSING',
  'INSTANCE_NOT_IN_SCOPE',
  'SIGN_IN_NOT_MAPPED',
  'SIGN_IN_UNAVAILABLE',
  'DEVICE_REVOKED',
  'DEVICE_KEY_REPLACED',
  'INTERNAL',
  'KEY_BUSY',
  'OVERLOADED',
  'STOPPING',
  'DATABASE_UNREACHABLE',
  'DATABASE_REFUSED',
  'DATABASE_DIFFERS',
  'DATABASE_WITHOUT_STANDBY',
  'OUTCOME_UNKNOWN',
  'NOT_RECORDED',
  'STATE_UNWRITABLE',
  'DATABASE_CORRUPT',
  'CELL_REQUIRED',
]

/** Errors of reading a body, which DELETE does too. */
const OF_BODIES: readonly ErrorCode[] = [
  'BAD_JSON',
  'BODY_INCOMPLETE',
  'BODY_TOO_LARGE',
  'MEDIA_TYPE_NOT_SUPPORTED',
  'REQUEST_TOO_SLOW',
]

export function errorCodes(method: Method, own: readonly ErrorCode[]): readonly ErrorCode[] {
  return [...new Set([...EVERYWHERE, ...(method === 'GET' ? [] : OF_BODIES), ...own])]
}

/** Operations share them: making a schema takes long. */
const errorForms = new Map<string, z.ZodType>()

function errorForm(codes: readonly ErrorCode[]): z.ZodType {
  const name = codes.join(' ')
  const form = errorForms.get(name) ?? z.strictObject({ message: z.string(), code: z.enum(codes) })
  errorForms.set(name, form)
  return form
}

export function codesByStatus(codes: readonly ErrorCode[]): ReadonlyMap<number, readonly ErrorCode[]> {
  return Map.groupBy(codes, (code) => ERRORS[code].http)
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
