/** Sends requests of devices: as fast as a number of connections allows, or at a rate whatever the cloud does. */
import { Agent, request } from 'node:http'
import { setTimeout as pause } from 'node:timers/promises'
import { backoff } from '../../src/agent/sync/backoff.ts'

export interface Call {
  readonly url: string
  readonly method: 'GET' | 'POST'
  readonly token: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body: Buffer | null
  readonly isCompressed: boolean
}

export interface Load {
  /** Ms from the planned time of a request to its response, including retries. */
  readonly latencies: readonly number[]
  readonly attempts: number
  /** Responses and errors that were retried, by status or code. */
  readonly retried: Readonly<Record<string, number>>
  /** Of all bodies. */
  readonly bytesSent: number
  readonly bytesReceived: number
  /** POSIX ms. */
  readonly from: number
  readonly to: number
}

/** `rate` null: each connection sends its next request when it has a response. Else requests begin at this rate, 1/s. */
export interface Plan {
  readonly connections: number
  readonly rate: number | null
}

/** The defaults of an agent. */
const BACKOFF = { baseMs: 1_000, capMs: 300_000 }

const TIMEOUT_MS = 60_000

interface Response {
  readonly status: number
  readonly text: string
  readonly retryAfterMs: number
}

/** @param take gets the text of each final response, after the last request */
export async function run<T>(
  items: readonly T[],
  { connections, rate }: Plan,
  callOf: (item: T) => Call,
  take: (item: T, text: string) => void | Promise<void>,
): Promise<Load> {
  const agent = new Agent({ keepAlive: true, maxSockets: connections })
  const latencies: number[] = []
  const retried: Record<string, number> = {}
  const texts: string[] = []
  let [attempts, bytesSent, bytesReceived] = [0, 0, 0]
  const one = async (index: number, plannedAt: number): Promise<void> => {
    const call = callOf(items[index] as T)
    for (let attempt = 0; ; attempt += 1) {
      attempts += 1
      bytesSent += call.body?.byteLength ?? 0
      const response = await send(agent, call)
      if (typeof response !== 'string' && response.status < 300) {
        bytesReceived += Buffer.byteLength(response.text)
        texts[index] = response.text
        latencies.push(performance.now() - plannedAt)
        return
      }
      const reason = typeof response === 'string' ? response : `${response.status}`
      if (typeof response !== 'string' && response.status < 500 && response.status !== 429) {
        throw new Error(`${call.method} ${call.url}: ${reason} ${response.text}`)
      }
      retried[reason] = (retried[reason] ?? 0) + 1
      const retryAfterMs = typeof response === 'string' ? 0 : response.retryAfterMs
      await pause(backoff(attempt + 1, retryAfterMs, Math.random(), BACKOFF))
    }
  }
  const from = Date.now()
  const begun = performance.now()
  if (rate === null) {
    let next = 0
    const work = async (): Promise<void> => {
      while (next < items.length) await one(next++, performance.now())
    }
    await Promise.all(Array.from({ length: connections }, work))
  } else {
    await Promise.all(
      items.map(async (_item, index) => {
        const plannedAt = begun + (index * 1_000) / rate
        await pause(Math.max(0, plannedAt - performance.now()))
        await one(index, plannedAt)
      }),
    )
  }
  const to = Date.now()
  agent.destroy()
  for (const [index, item] of items.entries()) await take(item, texts[index] ?? '')
  return { latencies, attempts, retried, bytesSent, bytesReceived, from, to }
}

/** A text: the code of the connection's failure. */
function send(
  agent: Agent,
  { url, method, token, headers: own, body, isCompressed }: Call,
): Promise<Response | string> {
  return new Promise((resolve) => {
    const headers = {
      authorization: `Bearer ${token}`,
      ...own,
      ...(body === null ? {} : { 'content-type': 'application/json', 'content-length': body.byteLength }),
      ...(isCompressed ? { 'content-encoding': 'gzip' } : {}),
    }
    const sent = request(url, { method, agent, headers, timeout: TIMEOUT_MS }, (response) => {
      let text = ''
      response.setEncoding('utf8')
      response.on('data', (piece: string) => (text += piece))
      response.on('error', (error) => resolve(codeOf(error)))
      response.on('end', () => {
        const retryAfterMs = Number(response.headers['retry-after'] ?? 0) * 1_000
        resolve({ status: response.statusCode ?? 0, text, retryAfterMs })
      })
    })
    sent.on('timeout', () => sent.destroy(Object.assign(new Error('no response'), { code: 'TIMEOUT' })))
    sent.on('error', (error) => resolve(codeOf(error)))
    if (body !== null) sent.write(body)
    sent.end()
  })
}

function codeOf(error: Error): string {
  return (error as NodeJS.ErrnoException).code ?? error.message
}
