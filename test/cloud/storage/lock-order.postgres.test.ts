// Everything that locks more than one row, at once and by two nodes: no two transactions may ever wait for each other in a
// circle, which PostgreSQL notices only after a second of standing still.
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { decimal, wholeTokens } from '../../../src/core/pricing/amount.ts'
import type { AccessRequest } from '../../../src/core/rules/decision.ts'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { createRateTable } from '../../../src/cloud/service-api/change-rate-tables.ts'
import { SyncBatcher } from '../../../src/cloud/sync/sync-batcher.ts'
import type { SyncDeps } from '../../../src/cloud/sync/merge-context.ts'
import { sync } from '../../../src/cloud/sync/sync.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import { AccessBatcher } from '../../../src/cloud/service-api/request-access.ts'
import {
  closeSession,
  heartbeatOfDevice,
  openSession,
  requestInSession,
} from '../../../src/cloud/sessions/session-life.ts'
import { setConsumptionLimit } from '../../../src/cloud/service-api/set-consumption-limit.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { TestDevice, topUpRequest } from '../sync/test-device.ts'
import { DAY, INSTANCE, START, Twin } from '../sync/twin.ts'
import { cloudShortages } from '../sync/grants/shortages.ts'

const ITEMS = ['A', 'B', 'C']
const ROUNDS = 12

const OTHER = '0f0e0d0c-1111-4222-8333-444455556666'

describe('two nodes that lock all kinds of rows', () => {
  const server = postgres()
  let schema: PostgresSchema
  let nodes: Twin[]
  const causes: unknown[] = []

  const open = (): Promise<Store> =>
    openPostgresStore({ url: schema.url, onConnectionLost: () => undefined, onRerun: (cause) => causes.push(cause) })

  beforeEach(async () => {
    causes.length = 0
    schema = await PostgresSchema.create(server.url)
    const first = await Twin.over(await open())
    nodes = [first, await first.anotherNode(await open())]
  })
  afterEach(async () => {
    for (const node of nodes) await node[Symbol.asyncDispose]()
    await schema[Symbol.asyncDispose]()
  })

  it('never wait for each other in a circle', { timeout: 180_000 }, async () => {
    const [first] = nodes
    if (first === undefined) throw new Error('there are two nodes')
    const { store } = first
    const rates = { version: '1', effectiveFrom: START - DAY, items: [{ name: 'P', version: '', rate: decimal('1') }] }
    await createRateTable(store, rates, START)
    await createInstance(store, { id: OTHER, shortName: 's', accountId: 'other' }, START)
    const owned = [INSTANCE, OTHER].flatMap((id) => [...ITEMS.entries()].map((each) => [id, ...each] as const))
    for (const [instanceId, index, activationId] of owned) {
      // Small ones are used up on the way, so that decisions reach for the next; daily ones must be carried on.
      const body = {
        activationId,
        state: 'DEPLOYED' as const,
        quantity: 60 * (index + 1),
        start: START - DAY,
        end: START + (300 + index) * DAY,
        attributes: { elastic: true, resetFrequency: 'DAILY' as const },
      }
      await mapLineItem(store, instanceId, body, START)
      const limit = { limit: wholeTokens(40), frequency: 'DAILY' as const, nextReset: START + DAY }
      await setConsumptionLimit(store, { instanceId, lineItemId: activationId }, limit, START)
    }

    let time = START
    const request = (who: number, count: number): AccessRequest => ({
      requester: { type: 'user', value: `user ${who}`, dictionary: {} },
      items: Array.from({ length: 2 }, () => ({ name: 'P', version: '', count: decimal(count) })),
    })
    const batchers = new Map(
      nodes.map((node) => [
        node,
        new AccessBatcher({
          store: node.store,
          policies: node.policies,
          shortages: cloudShortages(),
          defer: setImmediate,
        }),
      ]),
    )
    const oneOff = async (node: Twin, who: number): Promise<void> => {
      const command = {
        instanceId: who % 2 === 0 ? INSTANCE : OTHER,
        correlationId: randomUUID(),
        request: request(who, 7),
        metaData: [null, null],
      }
      await batchers.get(node)?.request(command, time)
    }
    const devices = await Promise.all(nodes.map((node) => TestDevice.join(node)))
    const partsOf = (node: Twin) => ({
      store: node.store,
      policies: node.policies,
      shortages: cloudShortages(),
      newId: randomUUID,
      sessionIntervalMs: 3_600_000,
      trustsClock: () => true,
    })
    const inSession = async (node: Twin, who: number): Promise<void> => {
      const parts = partsOf(node)
      const deviceId = devices[who % devices.length]?.id ?? null
      const opening = who % 3 === 0 ? randomUUID() : null
      const { id } = await openSession(parts, { instanceId: INSTANCE, deviceId, opening }, time)
      const command = { sessionId: id, correlationId: randomUUID(), metaData: [null, null], rollbackOnDeny: true }
      const belongs = (): void => undefined
      await requestInSession(parts, { ...command, request: request(who, 3) }, belongs, time)
      await requestInSession(
        parts,
        { ...command, correlationId: randomUUID(), request: request(who, 2) },
        belongs,
        time,
      )
      if (who % 2 === 0) await closeSession(parts, id, belongs, time)
    }
    const syncDeps = new Map(
      nodes.map((node) => {
        const deps: SyncDeps = {
          store: node.store,
          keys: node.keys,
          now: () => time,
          present: () => time,
          terms: node.terms,
          policies: node.policies,
          trustsClock: () => true,
          heartbeat: (tx, { id: deviceId }, at, locked) => heartbeatOfDevice(tx, deviceId, at, locked),
        }
        return [node, { ...deps, syncBatcher: new SyncBatcher(deps, setImmediate) }] as const
      }),
    )
    for (const device of devices) {
      const node = nodes[devices.indexOf(device)] ?? first
      const deps = syncDeps.get(node)
      if (deps === undefined) throw new Error('each node has its own')
      Object.defineProperty(device, 'twin', {
        value: {
          keys: node.keys,
          sync: async (id: string, document: string) => sync(deps, await node.device(id), document),
        },
      })
    }
    const period = (): number => Math.floor((time - START) / DAY) + 1
    const segment = async (device: TestDevice): Promise<void> => {
      await device.sync(ITEMS.toReversed().map((id) => topUpRequest(lineAccount(INSTANCE, id, period()), 5_000_000n)))
    }

    for (let round = 0; round < ROUNDS; round += 1) {
      // Calendars become due on the way, for everybody at once.
      time = START + round * 20 * DAY
      await Promise.all([
        ...nodes.flatMap((node) => Array.from({ length: 6 }, (_, who) => oneOff(node, who))),
        ...nodes.flatMap((node) => Array.from({ length: 6 }, (_, who) => inSession(node, who))),
        ...devices.map(segment),
      ])
    }
    expect(causes.filter((cause) => cause instanceof pg.DatabaseError && cause.code === '40P01')).toEqual([])
  })
})
