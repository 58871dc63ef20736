// Two nodes over one PostgreSQL whose clocks differ by seconds, and everything that charges, refunds, locks and ends sessions
// at the same moments. The books must agree with the usage records, and each session with its own.
import { randomUUID } from 'node:crypto'
import { expect, it } from 'vitest'
import { suspendDevice } from '../../../src/cloud/devices/suspend-device.ts'
import { AccessBatcher } from '../../../src/cloud/service-api/request-access.ts'
import { commandSession } from '../../../src/cloud/sessions/command-session.ts'
import {
  type SessionDeps,
  closeSession,
  heartbeat,
  openSession,
  requestInSession,
  sweepNextSession,
} from '../../../src/cloud/sessions/session-life.ts'
import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { decimal, wholeTokens } from '../../../src/core/pricing/amount.ts'
import type { AccessRequest } from '../../../src/core/rules/decision.ts'
import { hasEnded } from '../../../src/core/sessions/session.ts'
import { seeded } from '../../../src/demo/random.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { PostgresNodes } from '../../support/postgres-nodes.ts'
import { postgres } from '../../support/servers.ts'
import { cloudShortages } from '../sync/grants/shortages.ts'
import { TestDevice } from '../sync/test-device.ts'
import { INSTANCE, START, Twin } from '../sync/twin.ts'
import { listUsage } from '../usage/list-usage.ts'

const MINUTE = 60_000
const ROUNDS = Number(process.env['TALLYGATE_TEST_RUNS'] ?? 20)
const LINES = ['A', 'B']
const nodesOf = new PostgresNodes(postgres())
const anybody = (): void => undefined

/** Uniform integers from 0: the same for the same seed. */
function draws(seed: number): (below: number) => number {
  const random = seeded(seed)
  return (below) => random.between(0, below - 1)
}

it('keep books that agree with the usage of every session', { timeout: 120_000 + ROUNDS * 10_000 }, async () => {
  const first = await Twin.over(await nodesOf.first())
  const nodes = [first, await first.anotherNode(await nodesOf.another())]
  await first.setRates({ Print: 1 })
  for (const id of LINES) await first.setLineItem(id, { quantity: wholeTokens(60) })
  const { id: deviceId } = await TestDevice.join(first)
  const draw = draws(Number(process.env['TALLYGATE_TEST_SEED'] ?? 7))
  let time = START
  const sides = nodes.map((node, index) => {
    const shortages = cloudShortages()
    const deps: SessionDeps = {
      ...{ store: node.store, policies: node.policies, shortages, newId: randomUUID },
      ...{ sessionIntervalMs: 10 * MINUTE, trustsClock: () => true },
    }
    const batcher = new AccessBatcher({ store: node.store, policies: node.policies, shortages, defer: setImmediate })
    return { node, deps, batcher, now: () => time + index * 5_000 }
  })
  const request = (count: number): AccessRequest => ({
    requester: { type: 'user', value: 'ada', dictionary: {} },
    items: [0, 1].map(() => ({ name: 'Print', version: '', count: decimal(String(count / 2 + 0.25)) })),
  })
  const sessions: string[] = []
  const open = async (): Promise<void> => {
    const { id } = await openSession(
      sides[0]!.deps,
      { instanceId: INSTANCE, deviceId: draw(2) === 0 ? deviceId : null, opening: null },
      time,
    )
    sessions.push(id)
  }
  for (let n = 0; n < 5; n += 1) await open()

  const one = async (): Promise<void> => {
    const { node, deps, batcher, now } = sides[draw(2)]!
    const id = sessions[draw(sessions.length)]!
    const order = { sessionId: id, correlationId: randomUUID(), metaData: [null, null] }
    const suspend = (command: 'LOCK' | 'UNLOCK') =>
      suspendDevice({ store: node.store, sessions: deps, now, present: now }, deviceId, command)
    switch (draw(12)) {
      case 0:
      case 1:
      case 2:
        await requestInSession(
          deps,
          { ...order, request: request(draw(9)), rollbackOnDeny: draw(4) > 0 },
          anybody,
          now(),
        )
        break
      case 3:
        await requestInSession(
          deps,
          { ...order, request: { ...request(1), items: [] }, rollbackOnDeny: true },
          anybody,
          now(),
        )
        break
      case 4:
      case 5:
        await heartbeat(deps, id, anybody, now())
        break
      case 6:
        if (draw(4) === 0) await closeSession(deps, id, anybody, now())
        break
      case 7:
        await commandSession(deps, { id, command: draw(2) === 0 ? 'LOCK' : 'UNLOCK' }, now())
        break
      case 8:
        await suspend(draw(2) === 0 ? 'LOCK' : 'UNLOCK')
        break
      case 9:
        await batcher.request({ instanceId: INSTANCE, ...order, request: request(draw(5)) }, now())
        break
      case 10:
        await node.setLineItem(LINES[draw(2)]!, { quantity: wholeTokens(draw(150)) })
        break
      default:
        while (await sweepNextSession(deps, now())) continue
    }
  }
  const tried = (): Promise<void> =>
    one().catch((error: unknown) => {
      if (!(error instanceof CodedError)) throw error
    })

  const audit = async (): Promise<void> => {
    const { records } = await first.store.read((reader) => listUsage(reader, { limit: 1_000_000 }))
    const sums = Object.groupBy(records, ({ activationId }) => activationId ?? 'none')
    for (const id of LINES) {
      const account = lineAccount(INSTANCE, id, 0)
      const pool = (await first.store.read((reader) => reader.accounts.get([account]))).get(account)
      expect(pool?.charged ?? 0n).toBe(tokensOf(sums[id]))
      if (pool !== undefined) expect(pool.charged <= (pool.capInForce ?? 0n)).toBe(true)
    }
    for (const id of sessions) {
      const session = await first.store.read((reader) => reader.sessions.get(id))
      const own = records.filter(({ source }) => 'sessionId' in source && source.sessionId === id)
      expect(tokensOf(own) >= 0n).toBe(true)
      const reserved = session?.charge?.items
        .flatMap(({ shares }) => shares)
        .reduce((sum, share) => sum + share.charged, 0n)
      if (session !== undefined && !hasEnded(session)) expect(tokensOf(own) >= (reserved ?? 0n)).toBe(true)
    }
  }

  for (let round = 0; round < ROUNDS; round += 1) {
    await Promise.all(Array.from({ length: 16 }, tried))
    await audit()
    time += draw(7) * MINUTE
    // A locked device opens none.
    if (draw(2) === 0) await open().catch(() => undefined)
  }
  for (const id of sessions)
    await Promise.all(sides.map(({ deps, now }) => closeSession(deps, id, anybody, now()).catch(() => undefined)))
  await audit()
})

function tokensOf(records: readonly UsageRecord[] = []): bigint {
  return records.reduce((sum, { tokens }) => sum + tokens, 0n)
}
