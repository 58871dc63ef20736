/** A session is charged, locked and unlocked, and refunded after its application dies. */
import { HttpClient } from '../client/http.ts'
import { lineAccount } from '../core/accounts/account.ts'
import { formatMicro } from '../core/pricing/amount.ts'
import { session, sessionCreated } from '../protocol/service/sessions.ts'
import { expectThat, type Scene } from './scene.ts'
import { readStatus } from './ledgers.ts'
import { REQUESTERS, SESSION_ITEM, SESSION_LINE_ITEM } from './site.ts'

const SESSIONS = '/api/v1.1/sessions'
const INTERVALS = 3
const WHO = 'carla.rossi'

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
      const requester = { ...REQUESTERS[WHO], value: WHO }
      const requestedItems = [{ item: SESSION_ITEM.name, version: SESSION_ITEM.version, count: 1 }]
      const body = { requester, rollbackOnDeny: true, requestedItems }
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

    const order = async (what: string): Promise<boolean> => {
      const called = { method: 'POST', path: `/edge/api/v1/sessions/${sessionId}/${what}`, body: {} } as const
      return (await administrator.call(called)).status === 202
    }
    await expectThat('the twin knows the session', () => order('lock'), scene)
    await expectThat('the device locks the session', async () => (await stateOf()) === 'LOCKED', scene)
    await expectThat('a locked session is refused', async () => (await ask()) === 409, scene)
    presenter.step('The administrator locks it in the cloud: its next request at the device is refused')
    await expectThat('the twin unlocks the session', () => order('unlock'), scene)
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
