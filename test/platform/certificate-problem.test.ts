import { afterAll, beforeAll, expect, it } from 'vitest'
import { certificateProblem } from '../../src/platform/certificate-problem.ts'
import { Authority } from '../support/certificates.ts'

const DAY = 86_400_000
const HOUR = 3_600_000
/** It lives for two days. */
const until = Math.ceil(Date.now() / 1_000) * 1_000 + DAY

let authority: Authority
let pem = ''
beforeAll(async () => {
  authority = await Authority.make()
  pem = (await authority.certify(until, 'cloud.example')).certificate
})
afterAll(() => authority[Symbol.asyncDispose]())

it('is none within the dates and for the names of the certificate', () => {
  expect(certificateProblem(pem, ['cloud.example', '127.0.0.1'], until - DAY)).toBeNull()
})

it('names the date', () => {
  const date = new Date(until).toISOString()
  expect(certificateProblem(pem, [], until)).toBe(`expired at ${date}`)
  expect(certificateProblem(pem, [], until - 9 * HOUR)).toBe(`expires at ${date}`)
  expect(certificateProblem(pem, [], until - 10 * HOUR)).toBeNull()
  expect(certificateProblem(pem, [], until - 3 * DAY)).toMatch(/^is not valid before 2/)
})

it('names the host that clients use, and those of the certificate', () => {
  expect(certificateProblem(pem, ['cloud.example', 'other.example'], until - DAY)).toBe(
    'is not for other.example, but for IP Address:127.0.0.1, DNS:cloud.example',
  )
  expect(certificateProblem(pem, ['127.0.0.2'], until - DAY)).toMatch(/^is not for 127\.0\.0\.2, but for/)
})
