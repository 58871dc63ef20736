// The same requests to a device and to a cloud with the same rules and the same tokens: the same decisions, charges, refunds,
// sessions and usage records, whatever the rules say, however time passes and whatever administrators change.
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import { formatDecimal } from '../../../src/core/pricing/amount.ts'
import type { Session } from '../../../src/core/sessions/session.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { FakeTime } from '../../agent/sync/fake-time.ts'
import fc from '../../support/fast-check.ts'
import { CloudSide } from './cloud-side.ts'
import { DeviceSide } from './device-side.ts'
import { type Operation, type RequestDraw, operation, site } from './random-site.ts'

const RUNS = Number(process.env['TALLYGATE_TEST_RUNS'] ?? 25)

/** A leap year, at noon of a day that the next month does not have. */
const BEGIN = Date.UTC(2028, 0, 31, 12)

interface Pair {
  readonly cloud: string
  readonly device: string
}

class BothSides {
  readonly #time: FakeTime
  readonly #cloud: CloudSide
  readonly #device: DeviceSide
  readonly #sessions: Pair[] = []
  #revision = 0

  constructor(time: FakeTime, cloud: CloudSide, device: DeviceSide) {
    this.#time = time
    this.#cloud = cloud
    this.#device = device
  }

  async run(each: Operation): Promise<void> {
    const [cloud, device] = [this.#cloud, this.#device]
    switch (each.kind) {
      case 'pass':
        await this.#pass(each.ms)
        break
      case 'access': {
        const text = bodyOf(each, '', each.version === 'v1.1')
        await this.#same(cloud.access(each.version, text), device.access(each.version, text))
        break
      }
      case 'request':
        await this.#inSession(each.session, bodyOf(each, `"rollbackOnDeny":${each.keep},`))
        break
      case 'halt':
        await this.#inSession(each.session, bodyOf(NOTHING, '"rollbackOnDeny":true,'))
        break
      case 'heartbeat':
      case 'close': {
        const ids = this.#ids(each.session)
        if (ids !== undefined) await this.#same(cloud[each.kind](ids.cloud), device[each.kind](ids.device))
        break
      }
      case 'command': {
        const ids = this.#ids(each.session)
        if (ids === undefined) break
        await cloud.command(ids.cloud, each.command)
        device.command(ids.device, each.command)
        break
      }
      case 'open':
        this.#sessions.push({ cloud: await cloud.open(), device: await device.open() })
        break
      case 'restart':
        await device.restart()
        break
      case 'line':
        await cloud.map(each.lineItemId, each.line)
        break
      case 'table':
        await cloud.createTable(each.table)
        break
      case 'actions':
        await cloud.setActions(each.lineItemId, each.actions)
        break
      case 'limit':
        await cloud.setLimit(each.lineItemId, each.limit)
        break
      case 'configuration':
        await cloud.configure(each)
    }
    await device.settle()
    await this.prepare(this.#time.truth())
    for (const ids of this.#sessions) {
      expect(shownOf(device.session(ids.device))).toEqual(shownOf(await cloud.session(ids.cloud)))
    }
  }

  /** The device has the rules and the tokens for requests at this time. */
  async prepare(at: number): Promise<void> {
    const { loaded, sessionIntervalMs } = await this.#cloud.rules(at)
    const { policy } = loaded
    if (policy.revision !== this.#revision) {
      const read = await this.#device.takeRules(loaded, sessionIntervalMs)
      // Parts of conditions have ids and names only in the cloud.
      expect({ ...read, conditions: [] }).toEqual({ ...policy, conditions: [] })
      this.#revision = policy.revision
    }
    await this.#device.fill(loaded, at)
  }

  async compareBooks(): Promise<void> {
    const [cloud, device] = [this.#cloud, this.#device]
    expect(new Map(device.charged())).toEqual(new Map(await cloud.charged()))
    expect(device.usage().map(lineOf).toSorted()).toEqual((await cloud.usage()).map(lineOf).toSorted())
  }

  #ids(session: number): Pair | undefined {
    const recent = this.#sessions.slice(-3)
    return recent[session % Math.max(1, recent.length)]
  }

  async #inSession(session: number, text: string): Promise<void> {
    const ids = this.#ids(session)
    if (ids !== undefined)
      await this.#same(this.#cloud.request(ids.cloud, text), this.#device.request(ids.device, text))
  }

  async #same(inCloud: Promise<string>, onDevice: Promise<string>): Promise<void> {
    const answers = [inCloud, onDevice].map((answer) => answer.catch(codeOf).then(withoutId))
    const [cloud = '', device = ''] = await Promise.all(answers)
    expect(device).toBe(cloud)
  }

  async #pass(ms: number): Promise<void> {
    const end = this.#time.truth() + ms
    while (this.#time.truth() < end) {
      const due = await this.#cloud.nextDue(this.#sessions.map(({ cloud }) => cloud))
      const now = Math.min(end, Math.max(due, this.#time.truth() + 1))
      await this.prepare(now)
      this.#time.advance(now - this.#time.truth())
      await this.#device.settle()
      await this.#cloud.sweep()
    }
  }
}

const NOTHING: RequestDraw = { requester: 'x', dictionary: '{}', items: [] }

function bodyOf({ requester, dictionary, items }: RequestDraw, more: string, withVariables = true): string {
  const requestedItems = items.map(({ variables, ...item }) => (withVariables ? { ...item, variables } : item))
  const who = `{"type":"user","value":${JSON.stringify(requester)},"dictionary":${dictionary}}`
  return `{${more}"requester":${who},"requestedItems":${JSON.stringify(requestedItems)}}`
}

function withoutId(answer: string): string {
  return answer.replace(/"correlationId":"[^"]*",/, '')
}

function codeOf(error: unknown): string {
  if (error instanceof CodedError) return error.code
  throw error
}

/** What both sides have to keep. Heartbeats that are not needed are lost at a restart of the agent. */
function shownOf(session: Session | undefined): unknown {
  if (session === undefined) return undefined
  const { id: _id, instanceId: _instanceId, deviceId: _deviceId, lastHeartbeat: _last, charge, ...shown } = session
  const items = charge?.items.map(({ item, shares }) => ({
    item: { ...item, count: formatDecimal(item.count) },
    shares: shares.map(({ accounts, rate, ...share }) => ({
      ...share,
      rate: rate && formatDecimal(rate),
      accounts: accounts.toSorted(),
    })),
  }))
  return { ...shown, charge: charge && { ...charge, items } }
}

function lineOf({ count, rate, ...record }: UsageRecord): string {
  const { usageTime, requesterType, requesterValue, item, version, activationId, operation, status, tokens, metaData } =
    record
  const [counted, rated] = [formatDecimal(count), rate && formatDecimal(rate)]
  const what = [requesterType, requesterValue, item, version, counted, activationId, metaData]
  return [usageTime, operation, status, tokens, rated, ...what].join(' | ')
}

it('a device and the cloud decide, charge and refund alike', { timeout: 60_000 + RUNS * 10_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(
      site,
      fc.array(operation, { minLength: 10, maxLength: 60, size: 'max' }),
      async (given, operations) => {
        const folder = await mkdtemp(join(tmpdir(), 'tallygate-same-'))
        const store = openSqliteStore({ path: join(folder, 'twin.db'), check: false, onBroken: () => undefined })
        const time = new FakeTime(BEGIN)
        const cloud = new CloudSide(store, () => time.truth())
        const device = await DeviceSide.start(cloud.instanceId, time)
        try {
          await cloud.setUp(given)
          const sides = new BothSides(time, cloud, device)
          await sides.prepare(BEGIN)
          await sides.run({ kind: 'open' })
          for (const each of operations) await sides.run(each)
          await sides.compareBooks()
        } finally {
          device.stop()
          await store.close()
          await rm(folder, { recursive: true })
        }
      },
    ),
    { numRuns: RUNS },
  )
})
