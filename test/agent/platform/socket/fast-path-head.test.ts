import { describe, expect, it } from 'vitest'
import { fastPathHead } from '../../../../src/agent/platform/socket/fast-path-head.ts'
import { INSTANCE } from '../../sync/fake-cloud.ts'

const PATH = `/v1.0/instances/${INSTANCE}/access-request`
const lines = [`POST ${PATH} HTTP/1.1`, 'Host: x', 'Content-Type: application/json', 'Content-Length: 12']
const head = (...more: string[]): string => [...lines, ...more].join('\r\n')

describe('the head of a plain access request', () => {
  it('is understood', () => {
    const understood = fastPathHead(head('Accept: */*', 'X-Tallygate-Session:app 1 ', 'connection: Keep-Alive'))
    expect(understood).toMatchObject({
      target: { to: 'access', apiVersion: 'v1.0', instanceId: INSTANCE },
      bodyBytes: 12,
    })
    expect({ ...understood?.headers }).toEqual({
      host: 'x',
      'content-type': 'application/json',
      'content-length': '12',
      accept: '*/*',
      'x-tallygate-session': 'app 1',
      connection: 'Keep-Alive',
    })
  })

  it('may have a header that is named like what every object has', () => {
    expect(fastPathHead(head('__proto__: x', 'constructor: y'))?.headers).toMatchObject({ constructor: 'y' })
  })

  it.each([
    ['another method', head().replace('POST', 'PUT')],
    ['another version of HTTP', head().replace('HTTP/1.1', 'HTTP/1.0')],
    ['another address', head().replace(PATH, '/livez')],
    ['a whole URL', head().replace(PATH, `http://x${PATH}`)],
    ['an instance that is none', head().replace(INSTANCE, 'x')],
    ['two spaces', head().replace('POST ', 'POST  ')],
    ['no host', head().replace('Host: x\r\n', '')],
    ['no length', head().replace('\r\nContent-Length: 12', '')],
    ['a negative length', head().replace('12', '-1')],
    ['a length with a plus', head().replace('12', '+1')],
    ['a length beyond all limits', head().replace('12', '9'.repeat(10))],
    ['two lengths', head('content-length: 12')],
    ['a header that comes twice', head('Accept: a', 'accept: b')],
    ['chunks', head('Transfer-Encoding: chunked')],
    ['an expectation', head('Expect: 100-continue')],
    ['an upgrade', head('Upgrade: h2c')],
    ['an end of the connection', head('Connection: close')],
    ['a connection with options', head('Connection: keep-alive, te')],
    ['a folded header', head('X-A: b', ' c')],
    ['a space before the colon', head('X-A : b')],
    ['a header without a name', head(': b')],
    ['a header without a colon', head('X-A')],
    ['a control character', head('X-A: a\u0001b')],
    ['a bare line feed', head('X-A: a\nTransfer-Encoding: chunked')],
    ['a bare carriage return', head('X-A: a\rb')],
    ['bytes beyond ASCII', head('X-A: \u00e9')],
    ['an empty line before it', `\r\n${head()}`],
  ])('with %s is left to the general parser', (_what, text) => {
    expect(fastPathHead(text)).toBeUndefined()
  })
})
