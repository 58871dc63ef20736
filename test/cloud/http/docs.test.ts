// The reference that the twin serves: the documents, the error codes, and a script from this twin only.
import { once } from 'node:events'
import { type IncomingHttpHeaders, get } from 'node:http'
import { connect } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { gunzipSync } from 'node:zlib'
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { ERRORS } from '../../../src/protocol/errors.ts'
import { type Twin, openTwin, pick } from '../harness.ts'

interface Page {
  readonly status: number
  readonly text: string
  readonly headers: Headers
}

async function page(twin: Twin, path: string): Promise<Page> {
  const response = await fetch(`${twin.cloud.address}${path}`)
  return { status: response.status, text: await response.text(), headers: response.headers }
}

interface RawAnswer {
  readonly status: number | undefined
  readonly headers: IncomingHttpHeaders
  readonly body: Buffer
}

/** Without the decompression of `fetch`. */
function rawGet(url: URL, headers: Readonly<Record<string, string>>): Promise<RawAnswer> {
  return new Promise((resolve, reject) => {
    get(url, { headers }, (answer) => {
      const found = buffer(answer).then((body) => ({ status: answer.statusCode, headers: answer.headers, body }))
      resolve(found)
    }).once('error', reject)
  })
}

const NAMES = ['v1.0', 'v1.1', 'edge', 'data']
const pages = new Map<string, Page>()
const documents = new Map<string, unknown>()
let prefix = ''

describe('the reference', () => {
  beforeAll(async () => {
    await using twin = await openTwin()
    prefix = new URL(twin.cloud.address).pathname
    for (const path of ['', '/errors']) pages.set(path, await page(twin, `/docs${path}`))
    for (const name of NAMES) documents.set(name, (await twin.call('GET', `/docs/${name}.json`, { token: null })).body)
  })

  it('is served without a token', () => {
    for (const [path, { status, headers }] of pages) {
      expect([path, status, headers.get('content-type')]).toEqual([path, 200, 'text/html; charset=utf-8'])
    }
    for (const [name, document] of documents) expect([name, pick(document, 'openapi')]).toEqual([name, '3.1.1'])
  })

  it('names no host, and permits the browser to reach this server only', () => {
    for (const { text, headers } of pages.values()) {
      expect(text).not.toMatch(/(https?:)?\/\/[\w-]+\.[a-z]/i)
      expect(text).not.toMatch(/<(img|iframe|object|embed|form|base)\b|\son\w+=|@import|url\(|javascript:/i)
      const policy = headers.get('content-security-policy')?.split('; ') ?? []
      expect(policy).toContain("default-src 'none'")
      for (const part of policy) expect(part).toMatch(/^[\w-]+( ('none'|'self'|data:))+$|^style-src 'unsafe-inline'$/)
    }
  })

  it('offers every document, also without script', () => {
    const { text = '' } = pages.get('') ?? {}
    const configuration = /data-configuration="([^"]*)"/.exec(text)?.[1]?.replaceAll('&quot;', '"') ?? ''
    const urls = NAMES.map((name) => `${prefix}/docs/${name}.json`)
    const { sources } = JSON.parse(configuration) as { sources: readonly { url: string }[] }
    expect(sources.map(({ url }) => url)).toEqual(urls)
    const links = /<noscript>[^]*<\/noscript>/.exec(text)?.[0].matchAll(/href="([^"]*)"/g) ?? []
    expect([...links].map(([, href]) => href)).toEqual([...urls, `${prefix}/docs/errors`])
  })

  it('switches everything off that needs another server', () => {
    const { text = '' } = pages.get('') ?? {}
    for (const off of ['"withDefaultFonts":false', '"telemetry":false', '"agent":{"disabled":true}']) {
      expect(text.replaceAll('&quot;', '"')).toContain(off)
    }
  })

  it('shows every error code', () => {
    for (const code of Object.keys(ERRORS)) expect(pages.get('/errors')?.text).toContain(`<tr id="${code}">`)
  })

  it('has no icon, which is no error', async () => {
    await using twin = await openTwin()
    expect((await fetch(new URL('/favicon.ico', twin.cloud.address))).status).toBe(204)
  })

  it('is below the prefix of the twin', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, prefix: '' } }))
    const { body } = await twin.call('GET', '/docs/v1.0.json', { token: null })
    expect(pick(body, 'servers', 0, 'url')).toBe('/')
  })
})

describe('the script of the reference', () => {
  it('is compressed, and kept by browsers under the address of its version', async () => {
    await using twin = await openTwin()
    const src = /<script src="([^"]*)"/.exec((await page(twin, '/docs')).text)?.[1] ?? ''
    const { status, headers, body } = await rawGet(new URL(src, twin.cloud.address), { 'accept-encoding': 'br, gzip' })
    expect([status, headers['content-type'], headers['content-encoding']]).toEqual([200, 'text/javascript', 'gzip'])
    expect(headers['cache-control']).toBe('public, max-age=31536000, immutable')
    const text = gunzipSync(body).toString()
    expect(text).toContain('createApiReference')

    const plain = await rawGet(new URL(src, twin.cloud.address), {})
    expect(plain.headers['content-encoding']).toBeUndefined()
    expect(plain.body.equals(Buffer.from(text))).toBe(true)

    const ofAnotherNode = new URL(src.replace(/[^/]*$/, 'another.js'), twin.cloud.address)
    const other = await rawGet(ofAnotherNode, { 'accept-encoding': 'gzip' })
    expect([other.status, other.headers['cache-control']]).toEqual([200, 'no-cache'])
  })

  it('is unpacked once, however many clients do not read it', async () => {
    await using twin = await openTwin()
    const src = /<script src="([^"]*)"/.exec((await page(twin, '/docs')).text)?.[1] ?? ''
    const { hostname, port, pathname } = new URL(src, twin.cloud.address)
    await rawGet(new URL(src, twin.cloud.address), {})
    const before = process.memoryUsage().external
    for (let count = 0; count < 40; count += 1) {
      const socket = connect(Number(port), hostname).pause()
      onTestFinished(() => void socket.destroy())
      socket.write(`GET ${pathname} HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(50))
      await once(socket, 'readable')
    }
    expect(process.memoryUsage().external - before).toBeLessThan(50_000_000)
  })
})
