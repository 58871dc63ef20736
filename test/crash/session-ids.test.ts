// A session that an application opens while the device is offline keeps its id, on the device and in the cloud, whatever
// happens to the device: on the real programs.
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import type { Site } from '../../crash/site/site.ts'
import { HttpClient } from '../../src/client/http.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import { useProvisionedSite } from './provisioned-site.ts'

const session = z.object({ sessionId: z.string(), state: z.string() })

let site: Site
let backup: string
let id = ''
useProvisionedSite(async (opened) => {
  site = opened
  backup = join(site.directory, 'backup')
  site.startAgent()
  await site.agentServes()
})

async function atAgent(): Promise<string> {
  using agent = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  const { state } = await agent.json({ method: 'GET', path: `/api/v1.1/sessions/${id}` }, session)
  return state
}

async function atTwin(): Promise<string> {
  using twin = site.administrator()
  try {
    return (await twin.json({ method: 'GET', path: `/api/v1.1/sessions/${id}` }, session)).state
  } catch (error) {
    if (error instanceof CodedError && error.code === 'NOT_FOUND') return 'UNKNOWN'
    throw error
  }
}

async function stopAgent(): Promise<void> {
  await site.agent?.end('SIGKILL')
}

async function use(count: number): Promise<void> {
  using agent = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  const body = {
    requester: { type: 'user', value: 'ada' },
    rollbackOnDeny: true,
    requestedItems: [{ item: 'press', count }],
  }
  await agent.text({ method: 'PUT', path: `/api/v1.1/sessions/${id}`, body })
}

const ledger = (): string => join(site.agentState, 'journal.db')

describe('a session that was begun offline', { timeout: 120_000 }, () => {
  it('has an id at once, also after the agent was killed, and the same one in the cloud', async () => {
    await site.twin?.end('SIGKILL')
    using agent = new HttpClient({ address: `unix:${site.socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    const body = { instanceId: site.instanceId }
    id = (await agent.json({ method: 'POST', path: '/api/v1.1/sessions', body }, z.object({ sessionId: z.string() })))
      .sessionId
    await use(2)
    await stopAgent()
    site.startAgent()
    await site.agent?.listening
    expect(await atAgent()).toBe('ACTIVE')
    await stopAgent()
    cpSync(site.agentState, backup, { recursive: true })
    site.startAgent()
    site.startTwin()
    await site.twinReady()
    await site.drained()
    await expect.poll(atTwin, { timeout: 20_000 }).toBe('ACTIVE')
  })

  it('keeps it on a device that was set back to a backup', async () => {
    // The cloud hears of more than the backup holds.
    await use(1)
    await site.drained()
    await stopAgent()
    rmSync(site.agentState, { recursive: true })
    cpSync(backup, site.agentState, { recursive: true })
    site.startAgent()
    await site.until('it begins anew', ({ epoch, fenced }) => epoch === 2 && !fenced)
    await site.drained()
    expect([await atAgent(), await atTwin()]).toEqual(['ACTIVE', 'ACTIVE'])
    await site.agentServes()
    await use(3)
  })

  it('keeps it on a device whose ledger was damaged', async () => {
    await stopAgent()
    const database = new Database(ledger())
    const page = database.prepare("SELECT rootpage FROM sqlite_schema WHERE name = 'answer'").pluck().get() as number
    database.close()
    const bytes = readFileSync(ledger())
    bytes.fill(0x5a, 4096 * (page - 1), 4096 * page)
    writeFileSync(ledger(), bytes)
    site.startAgent()
    await site.until('it begins anew', ({ epoch, fenced }) => epoch === 3 && !fenced)
    await site.drained()
    expect(await atAgent()).toBe('ACTIVE')
    await expect.poll(atTwin).toBe('ACTIVE')
  })

  it('is of unknown fate when the device has lost its ledger and only kept its key', async () => {
    await stopAgent()
    for (const suffix of ['', '-wal', '-disk-reserve']) rmSync(`${ledger()}${suffix}`, { force: true })
    site.startAgent()
    await site.agentServes()
    await site.drained()
    await expect(atAgent()).rejects.toMatchObject({ code: 'NOT_FOUND' })
    expect(await atTwin()).toBe('DISCONNECTED')
  })
})
