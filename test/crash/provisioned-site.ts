// Agent and twin as programs of their own, for the tests of one file: the twin is up and sells, the agent is the test's to start.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect } from 'vitest'
import { Site } from '../../crash/site/site.ts'
import { accountLedger } from '../../src/protocol/edge/administration.ts'

/** For `beforeAll`, which ends with `close`. */
export async function provisionedSite(): Promise<{ readonly site: Site; readonly close: () => Promise<void> }> {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-crash-'))
  const site = await Site.make({ directory })
  site.startTwin()
  await site.twinReady()
  await site.provision()
  return {
    site,
    close: async () => {
      await site[Symbol.asyncDispose]()
      rmSync(directory, { recursive: true, force: true })
    },
  }
}

/** Waits until everything is delivered, and expects that the twin bills what the device counts. @returns the device's id */
export async function expectUseBilled(site: Site): Promise<string | null> {
  const { deviceId, accounts } = await site.drained()
  expect(accounts).not.toEqual([])
  using twin = site.administrator()
  const path = `/edge/api/v1/instances/${site.instanceId}/accounts`
  const books = await twin.json({ method: 'GET', path }, accountLedger)
  for (const { account, used } of accounts) {
    const holders = books.accounts.find((one) => one.account === account)?.devices ?? []
    const billed = holders.filter((one) => one.deviceId === deviceId).reduce((sum, one) => sum + one.billed, 0n)
    expect(billed).toBe(used)
  }
  return deviceId
}
