// Imports between two real clouds, and from sources that fail.
import { readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Twin, lineItemBody, openTwin, pick, text } from '../cloud/harness.ts'
import { type Ran, tallygate } from './outside.ts'

let [source, target]: [Twin, Twin] = [undefined as never, undefined as never]
beforeEach(async () => {
  ;[source, target] = await Promise.all([openTwin(), openTwin()])
})
afterEach(async () => {
  await source[Symbol.asyncDispose]()
  await target[Symbol.asyncDispose]()
})

const FILES = { '/source.pem': () => source, '/target.pem': () => target }

const run = (args: readonly string[], from = source.cloud.address): Promise<Ran> =>
  tallygate(
    [
      'import',
      '--from',
      from,
      '--from-key',
      '/source.pem',
      '--url',
      target.cloud.address,
      '--admin-key',
      '/target.pem',
      ...args,
    ],
    {
      now: () => target.now,
      readText: (path) => readFileSync(FILES[path as keyof typeof FILES]().cloud.administrationKeyFile, 'utf8'),
    },
  )
const rulesPath = (id: string) => `/api/v1.1/instances/${id}`

/** An instance with two line items, rules and use. */
async function shop(twin: Twin, accountId = 'acme'): Promise<string> {
  const id = await twin.instance(accountId)
  await twin.lineItem(id, { quantity: 200, attributes: { rateTableSeries: 'shop', resetFrequency: 'MONTHLY' } })
  await twin.lineItem(id, { activationId: 'HUGE', quantity: 9_223_372_036_854_775_807, end: 9_223_372_036_854_775_807 })
  const conditions = [
    { name: 'sales', operator: 'AND', conditions: [{ operator: 'IN', property: 'department', values: ['sales'] }] },
  ]
  const { body } = await twin.call('POST', `${rulesPath(id)}/conditions`, { body: conditions })
  await twin.call('POST', `${rulesPath(id)}/line-items/ACT-1/actions`, {
    body: [{ name: 'sellers', conditionId: text(body, 0, 'id'), action: 'ALLOW', allocation: 150 }, { action: 'DENY' }],
  })
  return id
}
const sell = (twin: Twin, id: string, count: number) =>
  twin.call('POST', `/elastic/api/v1.1/instances/${id}/access-request`, {
    body: {
      requester: { type: 'user', value: 'lisa', dictionary: { department: 'sales' } },
      requestedItems: [{ item: 'Print', count }],
    },
  })
/** What the service API shows of an instance. */
async function shown(twin: Twin, id: string): Promise<unknown> {
  const paths = [
    `${rulesPath(id)}/conditions`,
    `${rulesPath(id)}/line-items/actions`,
    `/provisioning${rulesPath(id)}/line-items`,
  ]
  return Promise.all(paths.map(async (path) => (await twin.call('GET', path)).text))
}

describe('an import from another cloud', () => {
  it('shows the differences, makes them, and finds none after that', async () => {
    await source.rates({ Print: 0.1, Scan: 3 }, 'shop')
    const [id, other] = [await shop(source), await shop(source, 'other')]
    await sell(source, id, 7)
    const dry = await run([])
    expect(dry).toMatchObject({ code: 0, err: '' })
    expect(dry.out).toContain('rate table shop 1  new    -     2 items, effective from 2026-05-05')
    expect(dry.out).toMatch(/line item ACT-1 +used +- +0\.7\n/)
    expect(dry.out).toContain('Dry run: nothing was changed.')
    expect((await target.call('GET', '/provisioning/api/v1.1/instances')).body).toEqual({ content: [], next: 0 })
    expect((await run(['--apply'])).code).toBe(0)
    for (const each of [id, other]) expect(await shown(target, each)).toEqual(await shown(source, each))
    const again = await run(['--apply'])
    expect(again).toMatchObject({ code: 0, err: '' })
    expect(again.out).toMatch(/\nNo changes\.\n$/)
  })

  it('imports only the difference after both services were used', async () => {
    await source.rates({ Print: 1 }, 'shop')
    const id = await shop(source)
    await sell(source, id, 10)
    await run(['--apply'])
    await sell(source, id, 2)
    await sell(target, id, 5)
    await run(['--apply'])
    expect(await target.used(id, 'ACT-1')).toBe(17)
    await run(['--apply'])
    expect(await target.used(id, 'ACT-1')).toBe(17)
  })

  it('prints JSON, one document per line', async () => {
    const id = await shop(source)
    const { out } = await run(['--json', '--instance', id])
    const [tables, instance, end] = out
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as unknown)
    expect(tables).toEqual({ rateTables: { applied: false, changes: [], notes: [], conflicts: [] } })
    expect(instance).toMatchObject({ instanceId: id, shortName: 'Test', applied: false, conflicts: [] })
    expect(end).toEqual({ ignored: [] })
  })

  it('reads API v1.0, and says what it does not show', async () => {
    const id = await shop(source)
    const { out, code } = await run(['--from-version', 'v1.0', '--apply'])
    expect(code).toBe(0)
    expect(out).toContain('API v1.0 shows no reset frequencies and no formulas.')
    expect(await target.used(id, 'ACT-1')).toBe(0)
  })

  it('imports the other instances when one has a conflict, and ends with IMPORT_CONFLICT', async () => {
    const [id, other] = [await shop(source), await shop(source, 'other')]
    await run(['--apply', '--instance', id])
    await target.rates({ Print: 1 }, 'shop')
    await sell(target, id, 3)
    await source.rates({ Print: 2 }, 'shop')
    await source.call('PUT', `/provisioning${rulesPath(id)}/line-items`, { body: lineItemBody({ state: 'OBSOLETE' }) })
    await target.call('PUT', `/provisioning${rulesPath(id)}/line-items`, { body: lineItemBody({ state: 'OBSOLETE' }) })
    await sell(source, id, 1)
    const { code, out, err } = await run(['--apply'])
    expect(code).toBe(65)
    expect(err).toMatch(/^tallygate: IMPORT_CONFLICT: One part has conflicts/)
    expect(out).toContain('conflict: rate table shop 1: the source has other items')
    expect((await target.call('GET', `/provisioning${rulesPath(other)}`)).status).toBe(200)
  })

  it('does what one run does when two run at once', async () => {
    await source.rates({ Print: 1 }, 'shop')
    const ids = [await shop(source), await shop(source, 'b'), await shop(source, 'c')]
    for (const id of ids) await sell(source, id, 4)
    const both = await Promise.all([run(['--apply']), run(['--apply'])])
    expect(both.map(({ code, err }) => [code, err])).toEqual([
      [0, ''],
      [0, ''],
    ])
    for (const id of ids) expect(await shown(target, id)).toEqual(await shown(source, id))
  })

  it('leaves audit rows that name the key and the source', async () => {
    await source.rates({ Print: 1 }, 'shop')
    const id = await shop(source)
    await sell(source, id, 4)
    await run(['--apply'])
    const { body } = await target.call('GET', `/edge/api/v1/audit?instanceId=${id}`)
    const rows = pick(body, 'records') as readonly Record<string, unknown>[]
    expect(rows.map(({ action }) => action)).toEqual(['IMPORT_USE', 'IMPORT_USE', 'IMPORT_INSTANCE'])
    expect(rows[1]).toMatchObject({ by: { kind: 'ADMINISTRATOR' }, lineItemId: 'ACT-1' })
    expect(JSON.parse(String(rows[1]!['detail']))).toMatchObject({ source: source.cloud.address, after: '4' })
  })

  it.each([
    [['--from', 'ftp://x'], 'USAGE'],
    [['--from', 'https://user:secret@host/dm'], 'USAGE'],
    [['--from-version', 'v2'], 'USAGE'],
    [['--from-token', '/source.pem'], 'USAGE'],
    [['--instance', 'x'], 'USAGE'],
  ])('%j is %s', async (args, code) => {
    const { err, out } = await run(args)
    expect([err.split(': ')[1], out]).toEqual([code, ''])
    expect(err).not.toContain('secret')
  })

  it('does not take the file of a token for one of a key', async () => {
    const args = ['import', '--from', source.cloud.address, '--url', target.cloud.address, '--from-token', '/token']
    const { err } = await tallygate(args, { readText: () => 'two words' })
    expect(err).toBe('tallygate: USAGE: /token does not contain a token. See tallygate import --help.\n')
  })

  it('does not import a service into itself', async () => {
    expect((await run([], `${target.cloud.address}/`)).err).toContain(
      'USAGE: --from is this cloud: name another service.',
    )
  })

  it('says which side refuses a key', async () => {
    const { code, err } = await tallygate(
      [
        'import',
        '--from',
        source.cloud.address,
        '--from-key',
        '/k',
        '--url',
        target.cloud.address,
        '--admin-key',
        '/k',
      ],
      { now: () => target.now, readText: () => readFileSync(target.cloud.administrationKeyFile, 'utf8') },
    )
    expect(err).toMatch(/: SOURCE_REFUSED: /)
    expect(code).toBe(77)
    expect(err).not.toContain('PRIVATE KEY')
  })
})

describe('a source that fails', () => {
  type Handler = (request: IncomingMessage, response: ServerResponse, path: string) => void

  /** Before the source: answers by itself, or passes the request on. */
  async function before(
    handle: (path: string, response: ServerResponse) => boolean,
  ): Promise<{ address: string; close: () => void }> {
    const pass: Handler = (request, response, path) => {
      void source
        .call('GET', path, { token: request.headers.authorization?.replace('Bearer ', '') ?? null })
        .then(({ status, text: body }) => response.writeHead(status).end(body))
    }
    const server = createServer((request, response) => {
      const path = (request.url ?? '').replace(/^\/dynamicmonetization/, '')
      if (!handle(path, response)) pass(request, response, path)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    return {
      address: `http://127.0.0.1:${port}/dynamicmonetization`,
      close: () => {
        server.closeAllConnections()
        server.close()
      },
    }
  }
  const against = async (
    args: readonly string[],
    handle: (path: string, response: ServerResponse) => boolean,
  ): Promise<Ran> => {
    const { address, close } = await before(handle)
    try {
      return await run(args, address)
    } finally {
      close()
    }
  }

  it('is continued where it stopped', async () => {
    const [first, second] = [await shop(source), await shop(source, 'b')]
    const stopped = await against(['--apply'], (path, response) => {
      if (!path.includes(`${second}/line-items`)) return false
      response.destroy()
      return true
    })
    expect(stopped.code).toBe(69)
    expect(stopped.err).toMatch(/^Stopped after 1 instances\. Run the command again/)
    expect(stopped.err).toContain('SOURCE_UNREACHABLE')
    expect(await shown(target, first)).toEqual(await shown(source, first))
    expect((await target.call('GET', `/provisioning${rulesPath(second)}`)).status).toBe(404)
    expect((await run(['--apply'])).code).toBe(0)
    expect(await shown(target, second)).toEqual(await shown(source, second))
  })

  it.each([429, 503])('is asked again after the time that it names (%s)', async (status) => {
    const id = await shop(source)
    const refused = new Map<string, number>()
    const { code, err } = await against(['--apply'], (path, response) => {
      const times = refused.get(path) ?? 0
      refused.set(path, times + 1)
      if (times >= 2) return false
      response.writeHead(status, { 'retry-after': '0' }).end()
      return true
    })
    expect(code).toBe(0)
    expect(err).toContain(`The source is busy (HTTP status ${status}). Trying again in 0 s.`)
    expect(await shown(target, id)).toEqual(await shown(source, id))
  })

  it.each([
    ['no JSON', '{"content":[', 'the answer is not JSON'],
    ['another form', '{"content":{}}', 'instances.content'],
    ['no id', '{"content":[{"shortName":"x","accountId":"y"}],"next":0}', 'instance.id'],
    ['pages without an end', '{"content":[],"next":7}', 'the pages do not end'],
    ['null', 'null', 'instances'],
  ])('%s is SOURCE_UNEXPECTED', async (_, body, words) => {
    const { code, err } = await against(['--apply'], (path, response) => {
      if (!path.includes('/instances?')) return false
      response.end(body)
      return true
    })
    expect([code, err]).toEqual([76, expect.stringContaining('SOURCE_UNEXPECTED')])
    expect(err).toContain(words)
  })

  it('can have fields that this project does not know, and pages', async () => {
    const ids = [await shop(source), await shop(source, 'b'), await shop(source, 'c')]
    const list = (await source.call('GET', '/provisioning/api/v1.1/instances')).body as { content: readonly object[] }
    const { code, out } = await against(['--apply'], (path, response) => {
      const [, next] = /\/instances\?size=\d+&next=(\d+)$/.exec(path) ?? []
      if (next === undefined) return false
      const content = [{ ...list.content[Number(next)], colour: { '\u001b[31m': 1 } }]
      response.end(JSON.stringify({ content, next: (Number(next) + 1) % ids.length, total: 3 }))
      return true
    })
    expect(code).toBe(0)
    expect(out).toContain('Ignored unknown fields: instances.total, instance.colour.')
    for (const id of ids) expect(await shown(target, id)).toEqual(await shown(source, id))
  })

  it('can write null for the fields that a condition does not have', async () => {
    const id = await shop(source)
    const { text: listed } = await source.call('GET', `${rulesPath(id)}/conditions`)
    const sent = listed
      .replace('"operator":"AND"', '"operator":"AND","property":null,"values":null,"condition":null')
      .replace('"operator":"IN"', '"operator":"IN","name":null,"condition":null,"conditions":null')
    const { code, out } = await against(['--apply'], (path, response) => {
      if (!path.endsWith('/conditions')) return false
      response.end(sent)
      return true
    })
    expect([code, out]).toEqual([0, expect.not.stringContaining('conflict')])
    expect(await shown(target, id)).toEqual(await shown(source, id))
  })

  it('loses no digit of a use, and no more than it can count', async () => {
    const id = await shop(source)
    const lineItem = (used: string) => (path: string, response: ServerResponse) => {
      if (!path.endsWith('/line-items')) return false
      response.end(
        `[{"activationId":"ACT-1","state":"DEPLOYED","start":0,"end":1e13,"quantity":200,"used":${used},"attributes":{"elastic":true}}]`,
      )
      return true
    }
    const rounded = await against(['--apply'], lineItem('33.333333333333336'))
    expect(rounded.out).toContain('note: The use of line item ACT-1 is 33.333333333333336: it is rounded up')
    expect(await target.used(id, 'ACT-1')).toBe(33.333334)
    expect((await against(['--apply'], lineItem('33.333333333333336'))).out).toContain('No changes.')
    await against(['--apply'], lineItem('9007199254.740993'))
    expect((await target.call('GET', `/provisioning${rulesPath(id)}/line-items/ACT-1`)).text).toContain(
      '"used":9007199254.740993',
    )
    const huge = await against(['--apply'], lineItem('1e30'))
    expect(huge.code).toBe(65)
    expect(huge.out).toContain('conflict: BAD_REQUEST: body.lineItems[0].used')
  })
})
