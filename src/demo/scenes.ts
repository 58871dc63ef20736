/** Scenes after the day. Applications do not see automatic charges, so only the ledgers are compared. */
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { HttpClient } from '../client/http.ts'
import { lineAccount } from '../core/accounts/account.ts'
import { formatMicro } from '../core/pricing/amount.ts'
import { CodedError } from '../protocol/errors.ts'
import { session, sessionCreated } from '../protocol/service/sessions.ts'
import { ITEM_STATUS, type ItemStatus } from '../protocol/service/status.ts'
import { readStatus } from './ledgers.ts'
import type { Presenter } from './presenter.ts'
import { seconds } from './report.ts'
import { REQUESTERS, SESSION_ITEM, SESSION_LINE_ITEM } from './site.ts'

export interface Scene {
  readonly socketPath: string
  readonly instanceId: string
  readonly technician: HttpClient
  readonly administrator: HttpClient
  readonly presenter: Presenter
  readonly signal: AbortSignal
}

const WITHIN_MS = 60_000
const LOOK_EVERY_MS = 20

const WHO = 'carla.rossi'
const REQUEST = {
  requester: { ...REQUESTERS[WHO], value: WHO },
  requestedItems: [{ item: SESSION_ITEM.name, version: SESSION_ITEM.version, count: 1 }],
}

const answer = z.object({ requestedItems: z.tuple([z.object({ status: z.object({ code: z.string() }) })]) })

/**
 * An administrator denies access to the workbench, the device refuses, and the next rule allows it again.
 * @throws CodedError DEMO_FAILED
 */
export async function playRuleScene(scene: Scene): Promise<void> {
  const { socketPath, instanceId, technician, administrator, presenter } = scene
  using application = new HttpClient({ address: `unix:${socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  const isAnswered = async (outcome: ItemStatus): Promise<boolean> => {
    const path = `/elastic/api/v1.1/instances/${instanceId}/access-request`
    const [item] = (await application.json({ method: 'POST', path, body: REQUEST }, answer)).requestedItems
    return item.status.code === ITEM_STATUS[outcome]['v1.1']
  }
  const inForce = async (): Promise<number> => (await readStatus(technician)).policies[0]?.applied ?? 0
  /** Makes it the workbench's only rule and waits for the device. @returns ms until the device applies it */
  const rule = async (name: string, action: 'ALLOW' | 'DENY'): Promise<number> => {
    const before = await inForce()
    const path = `/api/v1.1/instances/${instanceId}/line-items/${SESSION_LINE_ITEM}/actions`
    await administrator.text({ method: 'PUT', path, body: [{ name, action }] })
    const made = performance.now()
    await expectThat('the device has the new rule', async () => (await inForce()) > before, scene)
    return performance.now() - made
  }
  const took = await rule('Closed for cleaning', 'DENY')
  await expectThat('the device refuses by the new rule', () => isAnswered('DENIED_BY_RULE'), scene)
  presenter.step(`A new rule of access is pushed to the device, which refuses by it ${seconds(took)} s later`)
  await rule('Open again', 'ALLOW')
  await expectThat('the device allows again', () => isAnswered('GRANTED'), scene)
}

const SESSIONS = '/api/v1.1/sessions'
const INTERVALS = 3

/**
 * A session is charged, locked and unlocked, and refunded after its application dies.
 * @throws CodedError DEMO_FAILED
 */
export async function playSessionScene(scene: Scene): Promise<void> {
  const { socketPath, instanceId, technician, administrator, presenter } = scene
  const account = lineAccount(instanceId, SESSION_LINE_ITEM, 0)
  const spent = async (): Promise<{ readonly used: bigint; readonly refunded: bigint }> => {
    const { accounts } = await readStatus(technician)
    return accounts.find((each) => each.account === account) ?? { used: 0n, refunded: 0n }
  }
  const application = new HttpClient({ address: `unix:${socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  try {
    const bound = { 'x-tallygate-bound': 'connection' }
    const opening = { method: 'POST', path: SESSIONS, headers: bound, body: { instanceId } } as const
    const { sessionId } = await application.json(opening, sessionCreated)
    const path = `${SESSIONS}/${sessionId}`
    const ask = async (): Promise<number> => {
      const body = { ...REQUEST, rollbackOnDeny: true }
      return (await application.call({ method: 'PUT', path, body })).status
    }
    const stateOf = async (): Promise<string> => (await technician.json({ method: 'GET', path }, session)).state
    const before = (await spent()).used
    await expectThat('the session is granted its item', async () => (await ask()) === 200, scene)
    const first = (await spent()).used - before
    await expectThat(
      'the session is charged again',
      async () => (await spent()).used - before >= first * BigInt(INTERVALS),
      scene,
    )
    presenter.step(`A session is charged for ${INTERVALS} intervals, ${formatMicro(first)} tokens each, in advance`)

    const command = async (what: string): Promise<boolean> => {
      const called = { method: 'POST', path: `/edge/api/v1/sessions/${sessionId}/${what}`, body: {} } as const
      return (await administrator.call(called)).status === 202
    }
    await expectThat('the twin knows the session', () => command('lock'), scene)
    await expectThat('the device locks the session', async () => (await stateOf()) === 'LOCKED', scene)
    await expectThat('a locked session is refused', async () => (await ask()) === 409, scene)
    presenter.step('The administrator locks it in the cloud: its next request at the device is refused')
    await expectThat('the twin unlocks the session', () => command('unlock'), scene)
    await expectThat('the session continues', async () => (await ask()) === 200, scene)

    const { refunded } = await spent()
    application[Symbol.dispose]()
    await expectThat('the session of a dead application ends', async () => (await stateOf()) === 'TERMINATED', scene)
    const back = (await spent()).refunded - refunded
    presenter.step(
      `Unlocked, it continues; then its application dies: the session ends, ${formatMicro(back)} tokens are returned`,
    )
  } finally {
    application[Symbol.dispose]()
  }
}

/** Polls until the condition is met. */
async function expectThat(what: string, isSo: () => Promise<boolean>, { signal }: Scene): Promise<void> {
  const deadline = performance.now() + WITHIN_MS
  while (performance.now() < deadline) {
    signal.throwIfAborted()
    if (await isSo()) return
    await sleep(LOOK_EVERY_MS)
  }
  throw new CodedError('DEMO_FAILED', `Still not true after ${WITHIN_MS / 1000} s: ${what}.`)
}
