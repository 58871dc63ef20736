/** Loads an agent under strace and proves from the trace that each answer left after the flush of its entry. */
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { seeded } from '../src/demo/random.ts'
import { Applications } from './site/applications.ts'
import { Site } from './site/site.ts'
import { moments } from './trace/calls.ts'
import { ReplyProof, type ReplyReport } from './trace/replies.ts'
import { traced } from './trace/strace.ts'

export interface TraceOptions {
  readonly directory: string
  readonly decisions: number
  readonly connections: readonly number[]
  readonly preload?: readonly URL[]
}

export interface TraceReport extends ReplyReport {
  readonly connections: number
  /** Answers received but missing from the trace: must be 0. */
  readonly unseen: number
}

const LOOK_EVERY_MS = 20

export async function traceReplies({
  directory,
  decisions,
  connections,
  preload = [],
}: TraceOptions): Promise<readonly TraceReport[]> {
  await using site = await Site.make({ directory })
  site.startTwin()
  await site.twinReady()
  await site.provision()
  site.startAgent()
  await site.agentServes()
  await site.agent?.end('SIGTERM')
  const reports: TraceReport[] = []
  for (const count of connections) {
    const log = join(directory, 'strace.log')
    site.startAgent({ ...traced(log), preload })
    await site.agentServes()
    using applications = new Applications({
      ...{ socketPath: site.socketPath, instanceId: site.instanceId, pauseMs: 0 },
      ...{ applications: count, inFlight: 1, random: seeded(count) },
    })
    applications.begin()
    while (applications.told.length < decisions) {
      applications.check()
      await sleep(LOOK_EVERY_MS)
    }
    await applications.end()
    await site.agent?.end('SIGTERM')
    const proof = new ReplyProof(join(site.agentState, 'journal.db-wal'), site.socketPath)
    for await (const moment of moments(log)) proof.take(moment)
    const { proven, early } = proof.report
    const seen = new Set([...proven, ...early.map((text) => / answer (\S+)/.exec(text)?.[1])])
    const unseen = applications.told.filter(({ correlationId }) => !seen.has(correlationId)).length
    reports.push({ connections: count, unseen, ...proof.report })
    rmSync(log)
  }
  return reports
}
