/** One function for each group of figures. Each starts its own processes and ends them. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { prepareAgentState } from '../contenders/agent-state.ts'
import { type Command, agentOf } from '../contenders/agent.ts'
import { withPlace } from '../contenders/place.ts'
import { LoadGenerator } from '../load/generator.ts'
import { type MemoryUse, memoryUse, peakResidentSize } from '../measure/process-use.ts'
import { Site, requestBody } from '../push/site.ts'
import { GRANT_MARK, REQUEST_BODIES, REQUEST_PATH } from '../workload.ts'

/** Before the memory at rest is read, ms. */
const REST_MS = 15_000

const LOAD_MS = 6_000
const CONNECTIONS = 64
const SAMPLE_MS = 100
const DELIVERED_MIN = 100_000
const START_MS_MAX = 60_000

/** The runtime alone. */
export interface Bare {
  readonly rest: MemoryUse
  readonly startMs: number
}

export async function bareNode(node: string): Promise<Bare> {
  const begin = performance.now()
  const idle = 'process.stdout.write("up"); setInterval(() => undefined, 1e6)'
  const child = spawn(node, ['-e', idle], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    await once(child.stdout, 'data')
    const startMs = performance.now() - begin
    await delay(REST_MS)
    return { rest: memoryUse(child.pid ?? 0), startMs }
  } finally {
    await end(child)
  }
}

/** Times from the start of the command on an enrolled, offline device until its first granted request, ms. */
export async function startTimes(command: Command, directory: string, times: number): Promise<readonly number[]> {
  return withPlace(directory, async (place) => {
    const state = join(place.directory, 'agent')
    await prepareAgentState(state)
    const measured: number[] = []
    for (let time = 0; time < times; time += 1) {
      const begin = performance.now()
      const [program, ...first] = command
      const places = ['--state-directory', state, '--socket-path', place.socketPath]
      const child = spawn(program, [...first, 'agent', ...places, '--log-level', 'error'], { stdio: 'inherit' })
      try {
        await granted(place.socketPath, begin + START_MS_MAX)
        measured.push(performance.now() - begin)
      } finally {
        await end(child)
        rmSync(place.socketPath, { force: true })
      }
    }
    return measured
  })
}

/** Highest memory while 64 connections send requests to an offline device. */
export async function underLoad(
  command: Command,
  directory: string,
  durability: 'durable' | 'write-behind',
): Promise<{ readonly peak: MemoryUse; readonly perSecond: number }> {
  const generator = new LoadGenerator()
  try {
    return await withPlace(directory, async (place) => {
      const running = await agentOf({ name: 'agent', durability, command }).start(place)
      const { target, pid } = running
      try {
        const loading = generator.run({ target, connections: CONNECTIONS, warmupMs: 500, durationMs: LOAD_MS })
        const [report, peak] = await Promise.all([loading, peakUntil(pid, loading)])
        return { peak, perSecond: report.perSecond }
      } finally {
        await running.killAndCount()
      }
    })
  } finally {
    generator.stop()
  }
}

export interface Connected {
  readonly rest: MemoryUse
  readonly delivered: {
    readonly entries: number
    readonly peak: number
    readonly seconds: number
    readonly rest: MemoryUse
  }
}

/**
 * Memory at rest of an agent that is enrolled and connected, and its highest resident size while it delivers what it
 * recorded without a cloud.
 */
export async function connected(command: Command, directory: string): Promise<Connected> {
  const work = join(directory, 'site')
  mkdirSync(work)
  const site = await Site.open(work)
  const agent = {
    command,
    env: {
      TALLYGATE_AGENT_GRANTS_STARTING: '10000000',
      TALLYGATE_AGENT_SYNC_BACKOFF_MIN: '50ms',
      TALLYGATE_AGENT_SYNC_BACKOFF_MAX: '1s',
    },
  }
  try {
    await site.change(1_000_000_000)
    const first = await site.startAgent(await site.enrollmentToken(), agent)
    await until(async () => {
      const { push, policies } = await site.status()
      return push === 'CONNECTED' && (policies[0]?.applied ?? 0) > 0
    })
    await site.ask()
    await delay(REST_MS)
    const rest = memoryUse(first)

    await site.stopCloud()
    const entries = await record(site)
    await site.stopAgent()
    await site.startCloud()
    const begin = performance.now()
    const second = await site.startAgent(null, agent)
    await until(async () => (await site.status()).backlog === 0)
    const seconds = (performance.now() - begin) / 1000
    const peak = peakResidentSize(second)
    await delay(REST_MS)
    return { rest, delivered: { entries, peak, seconds, rest: memoryUse(second) } }
  } finally {
    await site[Symbol.asyncDispose]()
    rmSync(work, { recursive: true, force: true })
  }
}

/** @returns the number of entries that the cloud does not have */
async function record(site: Site): Promise<number> {
  const generator = new LoadGenerator()
  const target = {
    protocol: 'http',
    socketPath: site.socketPath,
    paths: [site.requestPath],
    bodies: [JSON.stringify(requestBody(1))],
    grantMark: '"totalTokensCharged":1',
  } as const
  try {
    let backlog = 0
    while (backlog < DELIVERED_MIN) {
      await generator.run({ target, connections: CONNECTIONS, warmupMs: 0, durationMs: 1_000 })
      backlog = (await site.status()).backlog
    }
    return backlog
  } finally {
    generator.stop()
  }
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds())) await delay(SAMPLE_MS)
}

async function peakUntil(pid: number, ended: Promise<unknown>): Promise<MemoryUse> {
  const over = { is: false }
  ended.then(
    () => (over.is = true),
    () => (over.is = true),
  )
  let peak: MemoryUse = { total: 0, anonymous: 0 }
  while (!over.is) {
    const use = memoryUse(pid)
    if (use.total > peak.total) peak = use
    await delay(SAMPLE_MS)
  }
  return peak
}

/** Connects until the agent listens, and resolves with its first granted response. */
async function granted(socketPath: string, deadline: number): Promise<void> {
  const body = REQUEST_BODIES[0] ?? ''
  const head = `POST ${REQUEST_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n`
  const request = `${head}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`
  while (performance.now() < deadline) {
    const answer = await new Promise<string>((resolve) => {
      const socket = connect(socketPath, () => socket.write(request))
      socket.once('data', (data) => {
        resolve(data.toString())
        socket.destroy()
      })
      socket.once('error', () => resolve(''))
    })
    if (answer.includes(GRANT_MARK)) return
    if (answer !== '') throw new Error(`the agent does not grant: ${answer}`)
    await delay(1)
  }
  throw new Error('the agent does not start')
}

async function end(child: ReturnType<typeof spawn>): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exit = once(child, 'exit')
  child.kill('SIGTERM')
  await exit
}
