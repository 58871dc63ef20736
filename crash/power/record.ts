/**
 * Records all file changes and sent bytes of agent and cloud from their first start. Both are killed once and stopped
 * at the end, so a recovery and a shutdown are recorded too.
 */
import { cpSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { seeded } from '../../src/demo/random.ts'
import { Applications } from '../site/applications.ts'
import { Site } from '../site/site.ts'
import { traced } from '../trace/strace.ts'

export interface Life {
  readonly log: string
  readonly left: string
}

export interface Recording {
  readonly agentState: string
  readonly twinState: string
  readonly agentLives: readonly Life[]
  readonly twinLives: readonly Life[]
}

export interface RecordOptions {
  readonly directory: string
  readonly decisions: number
  readonly preload?: readonly URL[]
}

const LIVES = 2
const LOOK_EVERY_MS = 10
const DIRECT = 10

export async function record({ directory, decisions, preload = [] }: RecordOptions): Promise<Recording> {
  await using site = await Site.make({ directory, agentSettings: { 'sync-batch': '20' } })
  const { agentState, twinState } = site
  const lives = { agent: [] as Life[], twin: [] as Life[] }
  for (let number = 0; number < LIVES; number += 1) {
    const life = (name: string): Life => {
      const path = join(directory, `${name}-${number}`)
      return { log: `${path}.strace`, left: path }
    }
    const [agent, twin] = [life('agent'), life('twin')]
    site.startTwin({ ...traced(twin.log), preload })
    await site.twinReady()
    if (number === 0) await site.provision()
    site.startAgent({ ...traced(agent.log), preload })
    await site.agentServes()
    const { socketPath, instanceId } = site
    using applications = new Applications({
      ...{ socketPath, instanceId, pauseMs: 10, random: seeded(number) },
      ...{ applications: 3, inFlight: 2 },
    })
    applications.begin()
    await askTwin(site, number)
    while (applications.told.length < decisions / LIVES) {
      applications.check()
      await sleep(LOOK_EVERY_MS)
    }
    const isLast = number === LIVES - 1
    if (isLast) {
      await applications.end()
      await site.drained()
    }
    const how = isLast ? 'SIGTERM' : 'SIGKILL'
    await Promise.all([site.agent?.end(how), site.twin?.end(how)])
    cpSync(dirname(agentState), agent.left, { recursive: true })
    cpSync(dirname(twinState), twin.left, { recursive: true })
    lives.agent.push(agent)
    lives.twin.push(twin)
  }
  return { agentState, twinState, agentLives: lives.agent, twinLives: lives.twin }
}

async function askTwin(site: Site, life: number): Promise<void> {
  using twin = site.administrator()
  for (let count = 1; count <= DIRECT; count += 1) {
    const path = `/elastic/api/v1.1/instances/${site.instanceId}/access-request`
    const requester = { type: 'user', value: `direct-${life}` }
    await twin.text({ method: 'POST', path, body: { requester, requestedItems: [{ item: 'press', count }] } })
  }
}
