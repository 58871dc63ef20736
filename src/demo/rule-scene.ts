/** An administrator denies access to the workbench, the device refuses, and the next rule allows it again. */
import { z } from 'zod'
import { HttpClient } from '../client/http.ts'
import { ITEM_STATUS, type ItemStatus } from '../protocol/service/status.ts'
import { readStatus } from './ledgers.ts'
import { seconds } from './report.ts'
import { expectThat, type Scene } from './scene.ts'
import { REQUESTERS, SESSION_ITEM, SESSION_LINE_ITEM } from './site.ts'

const WHO = 'carla.rossi'

const answer = z.object({ requestedItems: z.tuple([z.object({ status: z.object({ code: z.string() }) })]) })

/** @throws CodedError DEMO_FAILED */
export async function playRuleScene(scene: Scene): Promise<void> {
  const { socketPath, instanceId, technician, administrator, presenter } = scene
  using application = new HttpClient({ address: `unix:${socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
  const isAnswered = async (outcome: ItemStatus): Promise<boolean> => {
    const requestedItems = [{ item: SESSION_ITEM.name, version: SESSION_ITEM.version, count: 1 }]
    const body = { requester: { ...REQUESTERS[WHO], value: WHO }, requestedItems }
    const path = `/elastic/api/v1.1/instances/${instanceId}/access-request`
    const [item] = (await application.json({ method: 'POST', path, body }, answer)).requestedItems
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
