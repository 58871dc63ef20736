// Agent and twin as programs of their own, for the tests of one file: the twin is up and sells, the agent is the test's to start.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeAll, beforeEach, expect, onTestFinished } from 'vitest'
import { Applications } from '../../crash/site/applications.ts'
import { copyDatabase, Site } from '../../crash/site/site.ts'
import { seeded } from '../../src/demo/random.ts'
import { accountLedger } from '../../src/protocol/edge/administration.ts'
import { temporaryDirectory } from '../agent/harness.ts'

/** Opens a site for the tests of a file. @param keep is called with it before the first of them */
export function useProvisionedSite(keep: (site: Site) => Promise<void> | void): void {
  beforeAll(async () => {
    const directory = mkdtempSync(join(tmpdir(), 'tallygate-crash-'))
    const site = await Site.make({ directory })
    site.startTwin()
    await site.twinReady()
    await site.provision()
    await keep(site)
    return async () => {
      await site[Symbol.asyncDispose]()
      rmSync(directory, { recursive: true, force: true })
    }
  })
}

/** Opens a site for the tests of a file, each with its own device. */
export function useSiteWithDevices(keep: (site: Site) => void): void {
  let site: Site
  useProvisionedSite((opened) => keep((site = opened)))
  beforeEach(() => site.newDevice())
  afterEach(async () => {
    await site.agent?.end('SIGKILL')
  })
}

/** Applications of the site, until the end of the test. */
export function openApplications(site: Site, options: { applications: number; inFlight: number }): Applications {
  const { socketPath, instanceId } = site
  const made = new Applications({ socketPath, instanceId, ...options, pauseMs: 0, random: seeded(1) })
  onTestFinished(() => made[Symbol.dispose]())
  return made
}

/** A copy of a database of the site, which can be read while its process runs. */
export function copyOf(database: string): string {
  const copy = join(temporaryDirectory(), 'copy.db')
  copyDatabase(database, copy)
  return copy
}

/** Waits until everything is delivered, and expects that the twin bills what the device counts. @returns the device's id */
export async function expectUseBilled(site: Site): Promise<string | null> {
  const { deviceId, accounts } = await site.drained()
  expect(accounts).not.toEqual([])
  using twin = site.administrator()
  const path = `/edge/api/v1/instances/${site.instanceId}/accounts?size=1000`
  const books = await twin.json({ method: 'GET', path }, accountLedger)
  for (const { account, used } of accounts) {
    const holders = books.accounts.find((one) => one.account === account)?.devices ?? []
    const billed = holders.filter((one) => one.deviceId === deviceId).reduce((sum, one) => sum + one.billed, 0n)
    expect(billed).toBe(used)
  }
  return deviceId
}
