// The reference that the twin serves: whole, readable without script, and with nothing from elsewhere.
import { hash } from 'node:crypto'
import { beforeAll, describe, expect, it } from 'vitest'
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

const NAMES = ['v1.0', 'v1.1', 'edge', 'data']
const PAGES = ['', '/errors', ...NAMES.map((name) => `/${name}`)]
const pages = new Map<string, Page>()
const documents = new Map<string, unknown>()
let prefix = ''

describe('the reference', () => {
  beforeAll(async () => {
    await using twin = await openTwin()
    prefix = new URL(twin.cloud.address).pathname
    for (const path of PAGES) pages.set(path, await page(twin, `/docs${path}`))
    for (const name of NAMES) documents.set(name, (await twin.call('GET', `/docs/${name}.json`, { token: null })).body)
  })

  it('is served without a token', () => {
    for (const [path, { status, headers }] of pages) {
      expect([path, status, headers.get('content-type')]).toEqual([path, 200, 'text/html; charset=utf-8'])
    }
    for (const [name, document] of documents) expect([name, pick(document, 'openapi')]).toEqual([name, '3.1.1'])
  })

  it('names no host, runs no script, and tells the browser to allow nothing but its own style', () => {
    for (const { text, headers } of pages.values()) {
      expect(text).not.toMatch(/(https?:)?\/\/[\w-]+\.[a-z]/i)
      expect(text).not.toMatch(/<(script|img|link|iframe|object|embed|form|base)\b|\son\w+=|@import|url\(|javascript:/i)
      const style = /<style>([^]*?)<\/style>/.exec(text)?.[1] ?? ''
      const policy = headers.get('content-security-policy')?.split('; ')
      expect(policy).toContain("default-src 'none'")
      expect(policy).toContain(`style-src 'sha256-${hash('sha256', style, 'base64')}'`)
      expect(text.match(/<style/g)).toHaveLength(1)
      expect(text).not.toContain(' style=')
    }
  })

  it('leads nowhere but to its own pages and to places on them', () => {
    for (const [path, { text }] of pages) {
      for (const [, href = ''] of text.matchAll(/href="([^"]*)"/g)) {
        const [target = '', anchor] = href.split('#')
        const inside = target === '' ? path : target.slice(`${prefix}/docs`.length)
        if (target !== '') expect(target.startsWith(`${prefix}/docs`), href).toBe(true)
        const known = pages.get(inside)?.text
        if (inside.endsWith('.json')) expect(documents.has(inside.slice(1, -5))).toBe(true)
        else expect(known, `${path}: ${href}`).toBeDefined()
        if (anchor !== undefined) expect(known, `${path}: ${href}`).toContain(`id="${anchor}"`)
      }
    }
  })

  it('shows every operation, every schema and every error code', () => {
    for (const name of NAMES) {
      const text = pages.get(`/${name}`)?.text ?? ''
      const paths = Object.values(pick(documents.get(name), 'paths') as Record<string, Record<string, unknown>>)
      const ids = paths.flatMap((methods) => Object.values(methods).map((operation) => pick(operation, 'operationId')))
      expect(ids.length).toBeGreaterThan(name === 'data' ? 0 : 9)
      for (const id of ids) expect(text).toContain(`<article id="${String(id)}">`)
      const schemas = Object.keys(pick(documents.get(name), 'components', 'schemas') as object)
      for (const schema of schemas) expect(text).toContain(`id="schema-${schema}"`)
    }
    for (const code of Object.keys(ERRORS)) expect(pages.get('/errors')?.text).toContain(`<tr id="${code}">`)
  })

  it('is below the prefix of the twin', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, prefix: '' } }))
    const { body } = await twin.call('GET', '/docs/v1.0.json', { token: null })
    expect(pick(body, 'servers', 0, 'url')).toBe('/')
  })
})
