// The engine is upgraded in the middle of an epoch: the version is stated, the code that decides stays the same.
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { explain } from '../../../src/agent/diagnostics/explain.ts'
import { verifyLedger } from '../../../src/agent/ledger/verify-ledger.ts'
import { findInLedger, readLedger } from '../../../src/agent/platform/sqlite/read-ledger.ts'
import { Application, Site } from './site.ts'

const replayOf = async (path: string, id: string, engine: number): Promise<string> => {
  const found = await findInLedger(path, id)
  if (found === null) throw new Error(`no decision ${id}`)
  return (await explain({ kind: 'entry', ...found }, engine)).replay.result
}

test('an agent of the next engine continues the ledger, and each decision is compared by its own engine only', async () => {
  const site = await Site.make()
  const ids: string[] = []
  for (const version of [1, 2]) {
    site.engine = { version, oldest: 1 }
    const agent = await site.start()
    const application = new Application(agent)
    await application.until(({ accounts, connected }) => connected && accounts.length > 0)
    ids.push((await application.ask(version)).correlationId)
    expect(await application.status()).toMatchObject({ engine: version, epoch: 1, policies: [{ engine: 1 }] })
    await application.until(({ backlog }) => backlog === 0)
    await agent.stop()
  }
  expect(site.log.filter((line) => line.includes('this agent decides by them with engine 2'))).toHaveLength(1)
  // Billed once each, as recorded.
  expect([...site.cloud.billed.values()].map(({ engine }) => engine).toSorted()).toEqual([1, 2])

  const path = join(site.stateDirectory, 'journal.db')
  const results = ids.flatMap((id) => [1, 2].map(async (engine) => replayOf(path, id, engine)))
  expect(await Promise.all(results)).toEqual(['same', 'other-engine', 'other-engine', 'same'])
  const { findings, engines } = await readLedger(path, verifyLedger)
  expect([findings, engines.map(({ engine }) => engine)]).toEqual([[], [1, 2]])
})

test('an agent that needs rules of a newer engine refuses requests with a reason, until the previous one runs again', async () => {
  const site = await Site.make()
  const first = await site.start()
  await Application.ready(first)
  await first.stop()

  site.engine = { version: 3, oldest: 2 }
  const upgraded = await site.start()
  const application = new Application(upgraded)
  await expect(application.ask(1)).rejects.toMatchObject({ code: 'POLICY_MISSING' })
  const { conditions } = await application.until(({ connected }) => connected)
  expect(conditions).toContainEqual(expect.objectContaining({ code: 'CLOUD_ENGINE_OLD' }))
  await upgraded.stop()

  site.engine = { version: 1, oldest: 1 }
  const previous = await site.start()
  expect((await new Application(previous).ask(1)).requestedItems[0]?.status.code).toBe('101')
})
