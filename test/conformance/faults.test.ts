// The suite sees a server that keeps the interface in all but one thing: a twin whose answers are altered on their way.
import { readFile } from 'node:fs/promises'
import { type RequestListener, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { runChecks } from '../../conformance/runner.ts'
import { type Twin, newKeyPair, openTwin } from '../cloud/harness.ts'
import { Clock } from './clock.ts'

interface Said {
  readonly status: number
  readonly text: string
}

interface Fault {
  readonly what: string
  /** Words of the checks to run. */
  readonly only: string
  readonly alter: (method: string, path: string, said: Said) => Said
  /** A part of the name of a check that must fail. */
  readonly seenBy: string
}

const replaced = (from: string | RegExp, to: string, where: RegExp) => (_method: string, path: string, said: Said) =>
  where.test(path) ? { ...said, text: said.text.replaceAll(from, to) } : said

const FAULTS: readonly Fault[] = [
  {
    what: 'problems of line items under the key of v1.0',
    only: 'Errors, 1',
    alter: replaced(/"message":\[/g, '"errors":[', /line-items$/),
    seenBy: 'overdraftLimit that is a text',
  },
  {
    what: 'a heartbeat that answers 403 in v1.1',
    only: 'DELETE closes a session',
    alter: (_method, path, said) =>
      path.endsWith('/heartbeat') && said.status === 409 ? { ...said, status: 403 } : said,
    seenBy: 'its heartbeat fails with the status of the version',
  },
  {
    what: 'a heartbeat that does not name the state',
    only: 'DELETE closes a session',
    alter: replaced('TERMINATED', 'over', /heartbeat$/),
    seenBy: 'its heartbeat fails with the status of the version',
  },
  {
    what: 'item codes of three digits in v1.1',
    only: 'four',
    alter: replaced('"code":"2002"', '"code":"202"', /access-request$/),
    seenBy: 'four in v1.1',
  },
  {
    what: 'a charge that is one micro-token too much',
    only: 'fractional',
    alter: replaced('2.125', '2.125001', /access-request$/),
    seenBy: 'charged exactly',
  },
  {
    what: 'used that is rounded',
    only: 'fractional',
    alter: replaced('"used":2.38', '"used":2.4', /line-items/),
    seenBy: 'charged exactly',
  },
  {
    what: 'sessions oldest first',
    only: 'GET sessions',
    alter: (method, path, said) =>
      method === 'GET' && path.includes('/sessions?')
        ? { ...said, text: JSON.stringify((JSON.parse(said.text) as unknown[]).reverse()) }
        : said,
    seenBy: 'newest first',
  },
  {
    what: 'no floating area',
    only: 'floating',
    alter: (_method, path, said) => (path.includes('/floating/') ? { status: 404, text: '{}' } : said),
    seenBy: 'below floating/api',
  },
  {
    what: 'a session that outlives a missed heartbeat',
    only: 'no heartbeat in the 30 minutes',
    alter: replaced('TERMINATED', 'ACTIVE', /sessions\/[^/]+$/),
    seenBy: 'terminated, and that charge is refunded in full',
  },
  {
    what: 'a client that may make instances',
    only: 'client token gives no access to instance',
    alter: (_method, path, said) =>
      path.endsWith('/instances') && said.status === 403 ? { status: 200, text: '{}' } : said,
    seenBy: 'no access to instance operations',
  },
  {
    what: 'a table in effect that is deleted',
    only: 'before it is in effect',
    alter: (method, _path, said) => (method === 'DELETE' && said.status === 409 ? { status: 204, text: '' } : said),
    seenBy: 'but not afterwards',
  },
  {
    what: 'a locked session that takes heartbeats',
    only: 'locked',
    alter: (_method, path, said) =>
      path.endsWith('/heartbeat') && said.status === 409 ? { status: 204, text: '' } : said,
    seenBy: 'responds 409 until it is unlocked',
  },
  {
    what: 'a locked session that is still listed as one that is alive',
    only: 'locked',
    alter: replaced('"state":"LOCKED"', '"state":"ACTIVE"', /sessions\//),
    seenBy: 'responds 409 until it is unlocked',
  },
  {
    what: 'a consumption limit without effect',
    only: 'reached its limit',
    alter: replaced('"code":"2005"', '"code":"1001"', /access-request$/),
    seenBy: 'refused on that line item',
  },
  {
    what: 'a limit that counts what was consumed before',
    only: 'does not count',
    alter: (_method, path, said) =>
      path.endsWith('access-request') && said.text.includes('"count":3,')
        ? { ...said, text: said.text.replace('"code":"1001"', '"code":"2005"') }
        : said,
    seenBy: 'before the limit was set',
  },
  {
    what: 'a monthly limit that goes by thirty days',
    only: 'monthly limit',
    alter: (method, path, said) =>
      method === 'GET' && path.endsWith('consumption-limit')
        ? {
            ...said,
            text: said.text.replace(/"nextReset":(\d+)/, (_all, at) => `"nextReset":${Number(at) + 86_400_000}`),
          }
        : said,
    seenBy: 'first of each month',
  },
  {
    what: 'a formula that takes no variable in another case',
    only: 'variables of a request',
    alter: replaced('"totalTokensCharged":18', '"totalTokensCharged":2', /access-request$/),
    seenBy: 'by name, whatever their case',
  },
  {
    what: 'usage rows with a correlation id that no request had',
    only: 'row for each item',
    alter: replaced(/"correlationId":"[^"]+"/g, '"correlationId":"64d2028c-ae87-4069-a624-66089d957ef9"', /usage\?/),
    seenBy: 'granted or refused',
  },
  {
    what: 'no usage row of a refusal',
    only: 'row for each item',
    alter: (_method, path, said) =>
      path.includes('/usage?') ? { ...said, text: said.text.split('\n')[0] ?? '' } : said,
    seenBy: 'granted or refused',
  },
  {
    what: 'one usage row of a charge over two line items',
    only: 'two line items has a row',
    alter: (_method, path, said) =>
      path.includes('/usage?') ? { ...said, text: said.text.split('\n')[0] ?? '' } : said,
    seenBy: 'has a row for each',
  },
  {
    what: 'no usage row of a refund',
    only: 'each automatic charge and the refund',
    alter: (_method, path, said) =>
      path.includes('/usage?') ? { ...said, text: said.text.split('\n').slice(0, 2).join('\n') } : said,
    seenBy: 'add up to used',
  },
  {
    what: 'a last administration key that is deleted',
    only: 'all administration keys except the last',
    alter: (method, path, said) =>
      method === 'DELETE' && path.includes('/administration-keys/') && said.status === 403
        ? { status: 200, text: '{}' }
        : said,
    seenBy: 'the last one continues to work',
  },
  {
    what: 'PUT of actions that forgets what was used',
    only: 'PUT reorders',
    alter: replaced(/"used":\d+/g, '"used":0', /actions$/),
    seenBy: 'keeps used',
  },
]

async function serving(listener: RequestListener): Promise<{ readonly url: string } & AsyncDisposable> {
  const server = createServer(listener)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

describe('the suite sees', () => {
  let twin: Twin
  let clock: Clock
  let adminKey: string
  beforeAll(async () => {
    twin = await openTwin()
    clock = await Clock.of(twin)
    adminKey = await readFile(twin.cloud.administrationKeyFile, 'utf8')
  })
  afterAll(async () => {
    await clock[Symbol.asyncDispose]()
    await twin[Symbol.asyncDispose]()
  })

  const failures = async (alter: Fault['alter'], only: string): Promise<readonly string[]> => {
    await using server = await serving((request, response) => {
      const chunks: Buffer[] = []
      request.on('data', (chunk: Buffer) => chunks.push(chunk))
      request.on('end', () => {
        const { method = '', url = '', headers } = request
        const body = chunks.length === 0 ? {} : { body: Buffer.concat(chunks) }
        const passed = ['authorization', 'content-type', 'x-instance-id'].flatMap((name) => {
          const value = headers[name]
          return typeof value === 'string' ? [[name, value] as [string, string]] : []
        })
        void (async () => {
          const answer = await fetch(`${twin.cloud.address}${url}`, { method, headers: passed, ...body })
          const said = alter(method, url, { status: answer.status, text: await answer.text() })
          response.writeHead(said.status).end(said.status === 204 ? undefined : said.text)
        })()
      })
    })
    const target = { url: server.url, adminKey, clock: clock.url }
    const results = await runChecks(target, { scratch: true, extensions: true, versions: ['v1.1'], only })
    expect(results.length).toBeGreaterThan(0)
    return results.filter(({ outcome }) => outcome === 'failed').map(({ name }) => name)
  }

  it.each(FAULTS)('$what', async ({ only, alter, seenBy }) => {
    expect(await failures((_method, _path, said) => said, only)).toEqual([])
    expect((await failures(alter, only)).filter((name) => name.includes(seenBy))).not.toEqual([])
  })
})

it('no check passes on a server that responds to everything with an empty object', async () => {
  await using server = await serving((_, response) => response.end('{}'))
  const target = { url: server.url, adminKey: newKeyPair().privatePem }
  const results = await runChecks(target, { scratch: true, extensions: true, parallel: 6 })
  expect(results.filter(({ outcome }) => outcome === 'passed')).toEqual([])
  expect(results.some(({ outcome }) => outcome === 'failed')).toBe(true)
}, 120_000)
