import { decodeJwt } from 'jose'
import { expect, test } from 'vitest'
import { fakeService, readAdminKey } from './fake-service.ts'
import { tallygate } from './outside.ts'

const CODES = 'POST /dm/edge/api/v1/console-codes'
const answer = { status: 201, body: { code: 'the.code', expiresAt: Date.UTC(2026, 10, 1) } }

test('prints a URL that signs in once, and sends a token instead of the key', async () => {
  await using cloud = await fakeService('tcp', { [CODES]: answer })
  const args = ['console', '--url', cloud.address, '--admin-key', '/admin.pem', '--for', '2h']
  const { out } = await tallygate(args, { readText: readAdminKey })
  expect(out).toBe(`${cloud.address}/console/sign-in#the.code\n`)
  const { iat = 0, exp = 0 } = decodeJwt(cloud.asked[0]?.authorization?.replace('Bearer ', '') ?? '')
  expect(exp - iat).toBe(2 * 60 * 60)
})

test('prints URL and time for programs', async () => {
  await using cloud = await fakeService('tcp', { [CODES]: answer })
  const { out } = await tallygate(['console', '--url', cloud.address, '--admin-key', '/admin.pem', '--json'], {
    readText: readAdminKey,
  })
  expect(JSON.parse(out)).toEqual({
    url: `${cloud.address}/console/sign-in#the.code`,
    expiresAt: answer.body.expiresAt,
  })
})

test('says what to do when the console is off', async () => {
  const body = { message: 'This cloud does not serve its console.', code: 'CONSOLE_OFF' }
  await using cloud = await fakeService('tcp', { [CODES]: { status: 404, body } })
  const { err, code } = await tallygate(['console', '--url', cloud.address, '--admin-key', '/admin.pem'], {
    readText: readAdminKey,
  })
  expect(code).toBe(69)
  expect(err).toContain('CONSOLE_OFF')
  expect(err).toContain('http.console')
})
