import { describe, expect, it } from 'vitest'
import {
  type StatusAuthOptions,
  requireReader,
  requireSafe,
} from '../../../../src/agent/platform/status-http/status-auth.ts'

const LOCAL: StatusAuthOptions = { host: '127.0.0.1', tls: null, token: null }
const TLS = { certificate: 'c', key: 'k', clientCa: null }
const basic = (password: string) => `Basic ${Buffer.from(`any:${password}`).toString('base64')}`

describe('the authentication of the status', () => {
  it('opens beyond loopback only over TLS, and for authenticated readers', () => {
    for (const host of ['127.0.0.1', '127.8.9.1', '::1', 'localhost']) requireSafe({ ...LOCAL, host })
    for (const host of ['0.0.0.0', '::', '192.0.2.1', 'localhost.example', 'device.local']) {
      const refused = (options: Partial<StatusAuthOptions>) => () => requireSafe({ ...LOCAL, host, ...options })
      expect(refused({}), host).toThrow('certificate_file')
      expect(refused({ token: 't' }), host).toThrow('certificate_file')
      expect(refused({ tls: TLS }), host).toThrow('token_file')
      refused({ tls: TLS, token: 't' })()
      refused({ tls: { ...TLS, clientCa: 'ca' } })()
    }
  })

  it('refuses a foreign page whose host name resolves to this machine', () => {
    for (const host of ['127.0.0.1:7081', 'localhost', 'LOCALHOST:1', '[::1]:7081'])
      requireReader(LOCAL, { host }, false)
    for (const host of ['evil.example', 'evil.example:7081', '127.0.0.1.evil.example', '', undefined]) {
      const read = () => requireReader(LOCAL, host === undefined ? {} : { host }, false)
      expect(read, host).toThrow(expect.objectContaining({ code: 'BAD_REQUEST' }))
    }
  })

  it('takes the token as bearer or as a password, and nothing else', () => {
    const access = { ...LOCAL, token: 'secret:with colon' }
    const read = (authorization?: string) => () =>
      requireReader(access, { host: 'localhost', ...(authorization === undefined ? {} : { authorization }) }, false)
    expect(read()).toThrow(expect.objectContaining({ code: 'TOKEN_MISSING' }))
    for (const wrong of ['Bearer other', basic('other'), basic('')]) {
      expect(read(wrong), wrong).toThrow(expect.objectContaining({ code: 'TOKEN_INVALID' }))
    }
    for (const none of ['secret', 'Digest x', 'Basic bm9jb2xvbg==']) {
      expect(read(none), none).toThrow(expect.objectContaining({ code: 'TOKEN_MISSING' }))
    }
    read(basic('secret:with colon'))()
  })

  it('admits a client with a certificate of the authority instead of the token', () => {
    const access = { host: '0.0.0.0', tls: { ...TLS, clientCa: 'ca' }, token: 't' }
    requireReader(access, { host: 'device' }, true)
    expect(() => requireReader(access, { host: 'device' }, false)).toThrow(
      expect.objectContaining({ code: 'TOKEN_MISSING' }),
    )
    const noAuthority = { ...access, tls: TLS }
    expect(() => requireReader(noAuthority, { host: 'device' }, true)).toThrow('requires a token')
  })
})
