import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { createServer as createHttpServer } from 'node:http'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { USAGE_ROW_POSITIONS } from '../../src/cloud/storage/records.ts'
import { DAY, START, openTwin } from '../cloud/harness.ts'
import { EdgeClient } from '../cloud/devices/edge-client.ts'
import { fakeService, readAdminKey } from './fake-service.ts'
import { administering, tallygate } from './outside.ts'

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tallygate-usage-'))
})
afterEach(() => rmSync(directory, { recursive: true }))

const exported = (address: string, args: readonly string[], key: () => string = readAdminKey, now?: number) =>
  tallygate(['usage', 'export', '--url', address, '--admin-key', '/admin.pem', ...args], {
    readText: key,
    ...(now === undefined ? {} : { now: () => now }),
  })

test('each night’s export holds what is new since the last one, and prints the cursor for the next', async () => {
  await using twin = await openTwin()
  const instance = await twin.instance()
  await twin.lineItem(instance)
  await twin.rates({ Print: 3 })
  await twin.access(instance, { Print: 1 })
  const key = () => readFileSync(twin.cloud.administrationKeyFile, 'utf8')
  const file = join(directory, 'usage.csv')
  const first = await exported(twin.cloud.address, ['--out', file, '--instance', instance], key, twin.now)
  expect(first).toEqual({ code: 0, out: '', err: `next cursor: ${USAGE_ROW_POSITIONS}\n` })
  expect(readFileSync(file, 'utf8').split('\r\n')).toHaveLength(3)
  await twin.access(instance, { Print: 2 })
  const second = await exported(
    twin.cloud.address,
    ['--after', String(USAGE_ROW_POSITIONS), '--format', 'ndjson'],
    key,
    twin.now,
  )
  expect(second).toMatchObject({ code: 0, err: `next cursor: ${2n * USAGE_ROW_POSITIONS}\n` })
  expect(JSON.parse(second.out)).toMatchObject({ count: 2, tokens: 6, cursor: String(2n * USAGE_ROW_POSITIONS) })
  const day = new Date(twin.now).toISOString().slice(0, 10)
  expect((await exported(twin.cloud.address, ['--since', day, '--format', 'ndjson'], key, twin.now)).out).not.toBe('')
  expect((await exported(twin.cloud.address, ['--until', day, '--format', 'ndjson'], key, twin.now)).out).toBe('')
})

test('an export that is cut off leaves the file of the one before, and prints no cursor', async () => {
  const file = join(directory, 'usage.csv')
  writeFileSync(file, 'yesterday')
  const server = createServer((socket) => {
    socket.once('data', () => {
      socket.end('HTTP/1.1 200 OK\r\nx-next-cursor: 9\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n')
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}/dm`
  const { code, err } = await exported(address, ['--out', file])
  server.close()
  expect(code).toBe(69)
  expect(err).toMatch(/^tallygate: SERVICE_UNREACHABLE: /)
  expect(readFileSync(file, 'utf8')).toBe('yesterday')
  expect(readdirSync(directory)).toEqual(['usage.csv'])
})

test('a file that cannot be written is OUTPUT_UNWRITABLE, exit code 73', async () => {
  await using twin = await openTwin()
  const key = () => readFileSync(twin.cloud.administrationKeyFile, 'utf8')
  const file = join(directory, 'no', 'such', 'usage.csv')
  const ran = await exported(twin.cloud.address, ['--out', file], key, twin.now)
  expect(ran).toMatchObject({ code: 73, out: '' })
  expect(ran.err).toMatch(/Then run the command again\.$/m)
})

test.each([
  ['--since', 'yesterday'],
  ['--since', '2026-02-30'],
  ['--until', '2026-04-31T00:00Z'],
  ['--since', '2026'],
  ['--since', '20260501'],
  ['--since', '1780000000'],
  ['--after', 'x'],
  ['--format', 'xml'],
])('%s %s is USAGE', async (flag, value) => {
  expect(await exported('http://127.0.0.1:1/dm', [flag, value])).toMatchObject({ code: 64, out: '' })
})

test('accepts the epoch, a leap day and a time with a zone', async () => {
  for (const time of ['0', '1780000000000', '2028-02-29', '2026-05-01T00:30:00.5+02:00']) {
    expect((await exported('http://127.0.0.1:1/dm', ['--since', time])).code, time).toBe(69)
  }
})

test.each([
  ['usage', 'list', '--since', '2026-06-01'],
  ['usage', 'list'],
  ['usage', 'totals', '--since', '2026-06-01'],
  ['usage', 'export', '--since', '2026-05-01'],
  ['audit', 'list', '--since', '2026-06-01'],
])('%s %s refuses a --since that is not earlier than --until', async (...args) => {
  await using twin = await openTwin()
  const { code, err } = await tallygate([...args, '--until', '2026-05-01'], administering(twin))
  expect([code, err]).toEqual([64, expect.stringContaining('USAGE: Give a --since that is earlier than --until.')])
})

test('a list ends at its limit, however much the cloud has, and names what shows the rest', async () => {
  let written = 0
  const server = createHttpServer((_request, response) => {
    const line = `${JSON.stringify({ usageTime: 1, item: 'Print', status: 'GRANTED', metaData: 'x'.repeat(1_000) })}\n`
    const write = () => {
      while (!response.destroyed && response.write(line)) written += 1
    }
    response.writeHead(200, { 'x-next-cursor': '9' }).on('drain', write)
    write()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}/dm`
  const list = (...args: readonly string[]) =>
    tallygate(['usage', 'list', '--json', '--url', address, '--admin-key', '/admin.pem', ...args], {
      readText: readAdminKey,
    })
  const { code, out, err } = await list('--limit', '2')
  expect({ code, lines: out.trimEnd().split('\n').length }).toEqual({ code: 0, lines: 2 })
  expect(err).toMatch(/^There are more usage records\. .*tallygate usage totals.*tallygate usage export\.\n$/)
  expect((await list()).out.trimEnd().split('\n')).toHaveLength(1_000)
  server.closeAllConnections()
  server.close()
  expect(written).toBeLessThan(100_000)
})

test('a list without records needs no names', async () => {
  const usage = `GET /dm/provisioning/api/v1.1/usage?format=ndjson&from=${START}`
  await using cloud = await fakeService('tcp', { [usage]: { headers: { 'x-next-cursor': '0' }, body: '' } })
  const args = ['usage', 'list', '--since', String(START), '--url', cloud.address, '--admin-key', '/admin.pem']
  expect(await tallygate(args, { readText: readAdminKey })).toEqual({ code: 0, out: 'No usage.\n', err: '' })
  expect(cloud.asked).toHaveLength(1)
})

test('totals add up the tokens of a time by instance, line item and item, without refused requests', async () => {
  await using twin = await openTwin()
  const instance = await twin.instance()
  await twin.lineItem(instance, { activationId: 'SMALL', quantity: 4, end: START + 30 * DAY })
  await twin.lineItem(instance, { activationId: 'LARGE', quantity: 1_000 })
  await twin.rates({ Print: 1.5, Scan: 0.000001 })
  await twin.access(instance, { Print: 2 }, 'anna')
  const tomorrow = twin.now + DAY
  twin.now = tomorrow
  await twin.access(instance, { Print: 2, Scan: 1 }, 'ben')
  await twin.access(instance, { Weld: 1 }, 'ben')
  const totals = (...args: readonly string[]) =>
    tallygate(['usage', 'totals', '--url', twin.cloud.address, '--admin-key', '/admin.pem', ...args], {
      readText: () => readFileSync(twin.cloud.administrationKeyFile, 'utf8'),
      now: () => twin.now,
    })
  const { out } = await totals()
  const rows = out
    .trimEnd()
    .split('\n')
    .map((line) => line.split(/ {2,}/))
  expect(rows[0]).toEqual(['INSTANCE', 'LINE ITEM', 'ITEM', 'RECORDS', 'TOKENS'])
  expect(rows.slice(1).map((row) => row.slice(1))).toEqual([
    ['LARGE', 'Print', '1', '2'],
    ['LARGE', 'Scan', '1', '0.000001'],
    ['SMALL', 'Print', '2', '4'],
  ])
  const ofTomorrow = await totals('--since', String(tomorrow), '--by', 'requester', '--json')
  expect(JSON.parse(ofTomorrow.out)).toEqual({
    ...{ consumerType: 'user', consumerId: 'ben', records: 3, tokens: 3.000_001 },
  })
  expect(await totals('--until', String(START - DAY))).toMatchObject({ code: 0, out: 'No usage.\n' })
  expect((await totals('--by', 'item,price')).err).toContain('Use different columns of account, instance, ')
})

test('totals end at their limit, however many requesters there are', async () => {
  const server = createHttpServer((_request, response) => {
    let requester = 0
    const write = () => {
      let isTaken = true
      while (isTaken && !response.destroyed) {
        requester += 1
        isTaken = response.write(usageLineOf(`user-${requester}`))
      }
    }
    response.writeHead(200, { 'x-next-cursor': '9' }).on('drain', write)
    write()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}/dm`
  const totals = ['usage', 'totals', '--by', 'requester', '--url', address, '--admin-key', '/admin.pem']
  const { code, out, err } = await tallygate(totals, { readText: readAdminKey })
  expect({ code, out }).toEqual({ code: 65, out: '' })
  expect(err).toContain('TOTALS_TOO_MANY: There are more than 100,000 totals by requester. Select less with --since,')
})

function usageLineOf(consumerId: string): string {
  const record = { accountId: 'a', instanceId: 'i', activationId: 'A', item: 'Print', itemVersion: '1', deviceId: null }
  return `${JSON.stringify({ ...record, consumerType: 'user', consumerId, tokens: 1 })}\n`
}

test('totals of an export that is cut off are not printed', async () => {
  const server = createServer((socket) => {
    socket.once('data', () => {
      socket.end('HTTP/1.1 200 OK\r\nx-next-cursor: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n')
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}/dm`
  const totals = ['usage', 'totals', '--url', address, '--admin-key', '/admin.pem']
  const { code, out } = await tallygate(totals, { readText: readAdminKey })
  server.close()
  expect({ code, out }).toEqual({ code: 69, out: '' })
})

test('the list shows why a device refuses, with the id that explain needs', async () => {
  await using twin = await openTwin()
  const instance = await twin.instance()
  await twin.lineItem(instance)
  const device = await EdgeClient.join(twin, instance)
  device.device.clock = { now: twin.now, earliest: twin.now, latest: twin.now }
  device.device.charge({ lineItemId: 'ACT-1', accounts: [device.line('ACT-1')], amount: 1_000_000n })
  await device.device.sync()
  await twin.access(instance, { Weld: 1 })
  const list = async (...args: readonly string[]) => {
    const { out } = await tallygate(['usage', 'list', ...args, '--json'], administering(twin))
    return out.split('\n').flatMap((line) => (line === '' ? [] : [JSON.parse(line) as Record<string, unknown>]))
  }
  const refused = { deviceId: device.id, status: 'GRANT_EXHAUSTED', correlationId: expect.any(String) as string }
  expect(await list('--since', '0', '--device', device.id.toUpperCase(), '--refused')).toMatchObject([refused])
  expect(await list('--since', '0', '--refused')).toHaveLength(2)
})
