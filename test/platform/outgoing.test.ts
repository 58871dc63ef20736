import { describe, expect, it } from 'vitest'
import { authorities, proxyFor } from '../../src/platform/outgoing.ts'

const PROXY = 'http://proxy.example:3128'

const hostOf = (address: string, variables: Record<string, string>): string | null =>
  proxyFor(address, variables)?.host ?? null

describe('the proxy for an address', () => {
  it('is that of HTTPS_PROXY for encrypted addresses, and that of HTTP_PROXY for others', () => {
    const variables = { HTTPS_PROXY: PROXY, HTTP_PROXY: 'http://other.example' }
    for (const address of ['https://cloud.example/x', 'wss://cloud.example/push'])
      expect(hostOf(address, variables)).toBe('proxy.example:3128')
    for (const address of ['http://cloud.example', 'ws://cloud.example'])
      expect(hostOf(address, variables)).toBe('other.example')
    expect(hostOf('mqtts://cloud.example', variables)).toBeNull()
    expect(hostOf('https://cloud.example', {})).toBeNull()
  })

  it('comes from the variable in lower case first, and may lack its scheme', () => {
    expect(hostOf('https://cloud.example', { HTTPS_PROXY: PROXY, https_proxy: 'lower.example:8080' })).toBe(
      'lower.example:8080',
    )
    expect(hostOf('https://cloud.example', { HTTPS_PROXY: PROXY, https_proxy: '' })).toBe('proxy.example:3128')
  })

  it.each([
    ['cloud.example', 'cloud.example'],
    ['a.cloud.example', 'cloud.example'],
    ['a.cloud.example', '.cloud.example'],
    ['a.cloud.example', '*.cloud.example'],
    ['CLOUD.example', 'other.example, cloud.EXAMPLE'],
    ['cloud.example', 'cloud.example:443'],
    ['cloud.example', '*'],
    ['192.0.2.7', '192.0.2.0/24'],
    ['192.0.2.7', '192.0.2.7'],
    ['[2001:db8::7]', '2001:db8::/32'],
    ['[2001:db8::7]', '[2001:db8::7]:443'],
  ])('is none for %s with NO_PROXY=%s', (host, list) => {
    expect(hostOf(`https://${host}/x`, { HTTPS_PROXY: PROXY, NO_PROXY: list })).toBeNull()
  })

  it.each([
    ['mycloud.example', 'cloud.example'],
    ['cloud.example', 'a.cloud.example'],
    ['cloud.example', 'cloud.example:8443'],
    ['192.0.3.7', '192.0.2.0/24'],
    ['192.0.2.7', '192.0.2.0/99'],
    ['cloud.example', ', ,'],
  ])('leads to %s with NO_PROXY=%s', (host, list) => {
    expect(hostOf(`https://${host}/x`, { HTTPS_PROXY: PROXY, NO_PROXY: list })).toBe('proxy.example:3128')
  })

  it.each(['https://localhost:7080', 'https://127.0.0.2', 'https://[::1]:7080'])('is never used for %s', (address) => {
    expect(hostOf(address, { HTTPS_PROXY: PROXY })).toBeNull()
  })

  it.each(['socks5://proxy.example', 'http://', 'http://a b'])('cannot be %s', (proxy) => {
    expect(() => proxyFor('https://cloud.example', { HTTPS_PROXY: proxy })).toThrow(
      expect.objectContaining({
        code: 'CONFIG_INVALID',
        message: expect.stringContaining('HTTPS_PROXY') as string,
      }) as Error,
    )
  })
})

describe('the trusted authorities', () => {
  it('come once each, and the given one is last', () => {
    const all = authorities('one more')
    expect(all.at(-1)).toBe('one more')
    expect(new Set(all).size).toBe(all.length)
    expect(all.length).toBeGreaterThan(1)
  })
})
