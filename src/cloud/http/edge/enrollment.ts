/** Enrollment of devices. */
import { actingFor } from '../../storage/audit.ts'
import type { Store } from '../../storage/store.ts'
import {
  enrollmentRequest,
  enrollmentResponse,
  enrollmentTokenRequest,
  enrollmentTokenResponse,
} from '../../../protocol/edge/enrollment.ts'
import { enroll } from '../../devices/enroll.ts'
import { type IssueEnrollmentToken, issueEnrollmentToken } from '../../devices/issue-enrollment-token.ts'
import { type Operation, ADMINISTRATORS, edgeOperation } from '../operation.ts'

export function enrollmentOperations(deps: IssueEnrollmentToken & { readonly store: Store }): readonly Operation[] {
  return [
    edgeOperation({
      method: 'POST',
      path: '/enrollment-tokens',
      principals: ADMINISTRATORS,
      body: enrollmentTokenRequest,
      id: 'issueEnrollmentToken',
      role: 'operator',
      tag: 'Enrollment',
      summary: 'Create a one-time enrollment token for a device',
      example: { instanceIds: ['64d2028c-ae87-4069-a624-66089d957ef9'], name: 'press 7' },
      answers: {
        201: { description: 'The token. Pass it to the device out of band.', body: enrollmentTokenResponse },
      },
      errors: ['NOT_FOUND'],
      handle: async ({ body, principal }) => {
        return { status: 201, body: await issueEnrollmentToken(actingFor(deps, principal), body) }
      },
    }),
    edgeOperation({
      method: 'POST',
      path: '/enrollments',
      principals: ['ENROLLMENT'],
      body: enrollmentRequest,
      id: 'enroll',
      tag: 'Enrollment',
      summary: 'Register the key of a device',
      description: 'Idempotent for the same token and key. The token is refused with another key.',
      answers: { 200: { description: 'The device is enrolled.', body: enrollmentResponse } },
      errors: ['ENROLLMENT_REFUSED'],
      handle: async ({ principal, body }) => ({ status: 200, body: await enroll(deps, principal.token, body) }),
    }),
  ]
}
