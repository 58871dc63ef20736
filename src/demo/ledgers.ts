import { z } from 'zod'
import { exactTokens, parseExactJson } from '../client/exact-json.ts'
import type { HttpClient } from '../client/http.ts'
import { type AccountId, actionAccount, lineAccount } from '../core/accounts/account.ts'
import type { Micro } from '../core/pricing/amount.ts'
import { billed } from '../core/accounts/grant.ts'
import { accountLedger, deviceList } from '../protocol/edge/administration.ts'
import { AGENT_STATUS_PATH, agentStatus, type AgentStatus } from '../protocol/local/status.ts'
import type { Ledger, Ledgers } from './result.ts'

export async function readLedgers(agent: HttpClient, twin: HttpClient, instanceId: string): Promise<Ledgers> {
  return {
    device: await deviceLedger(agent),
    cloud: await cloudLedger(twin, instanceId),
    ...(await serviceBooks(twin, instanceId)),
    exported: await exportedUsage(twin, instanceId),
  }
}

export async function readStatus(agent: HttpClient): Promise<AgentStatus> {
  return agent.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
}

export async function alarmsOf(twin: HttpClient, instanceId: string): Promise<number> {
  const call = { method: 'GET', path: `/edge/api/v1/devices?instanceId=${instanceId}` } as const
  const { devices } = await twin.json(call, deviceList)
  return devices.filter(({ forked, rejected, epoch }) => forked || rejected || epoch !== 1).length
}

async function deviceLedger(agent: HttpClient): Promise<Ledger> {
  const { accounts } = await readStatus(agent)
  return new Map(accounts.map((account) => [account.account, billed(account)]))
}

/** Usage that the cloud has billed for devices or charged itself. The demo's accounts fit on one page. */
async function cloudLedger(twin: HttpClient, instanceId: string): Promise<Ledger> {
  const call = { method: 'GET', path: `/edge/api/v1/instances/${instanceId}/accounts?size=1000` } as const
  const { accounts } = await twin.json(call, accountLedger)
  return new Map(accounts.map(({ account, charged, billedByDevices }) => [account, charged + billedByDevices]))
}

const exportedRecord = z.object({ activationId: z.string().nullish(), tokens: exactTokens })

async function exportedUsage(twin: HttpClient, instanceId: string): Promise<Ledger> {
  const path = `/provisioning/api/v1.1/usage?format=ndjson&instanceId=${instanceId}`
  const records = (await twin.text({ method: 'GET', path })).split('\n').filter((line) => line !== '')
  const exported = new Map<AccountId, Micro>()
  for (const { activationId, tokens } of records.map((line) => exportedRecord.parse(parseExactJson(line)))) {
    // Refusals have no line item.
    if (activationId === undefined || activationId === null) continue
    const account = lineAccount(instanceId, activationId, 0)
    exported.set(account, (exported.get(account) ?? 0n) + tokens)
  }
  return exported
}

const lineItems = z.array(z.object({ activationId: z.string(), used: exactTokens }))

const actionLists = z.array(
  z.object({
    lineItems: z.array(
      z.object({
        lineItemId: z.string(),
        actions: z.array(z.object({ id: z.string(), name: z.string(), used: exactTokens.optional() })),
      }),
    ),
    next: z.string(),
  }),
)

/** `used` of line items and allocations in the service API. The demo's line items fit on one page. */
async function serviceBooks(twin: HttpClient, instanceId: string): Promise<Pick<Ledgers, 'service' | 'names'>> {
  const service = new Map<AccountId, Micro>()
  const names = new Map<AccountId, string>()
  const read = async (path: string): Promise<unknown> => parseExactJson(await twin.text({ method: 'GET', path }))
  for (const item of lineItems.parse(await read(`/provisioning/api/v1.1/instances/${instanceId}/line-items`))) {
    const account = lineAccount(instanceId, item.activationId, 0)
    service.set(account, item.used)
    names.set(account, item.activationId)
  }
  const lists = actionLists.parse(await read(`/api/v1.1/instances/${instanceId}/line-items/actions`))
  for (const { lineItemId, actions } of lists.flatMap((list) => list.lineItems)) {
    for (const { id, name, used } of actions) {
      if (used === undefined) continue
      const account = actionAccount(instanceId, lineItemId, id)
      service.set(account, used)
      names.set(account, name)
    }
  }
  return { service, names }
}
