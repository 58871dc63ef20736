/**
 * Closed loop: each connection waits for a response before its next request. Pending responses are awaited at the end,
 * so acknowledged requests must equal the server's records.
 */
import { type Socket, connect } from 'node:net'
import type { Dialect, Target } from './dialect.ts'
import { httpDialect } from './http-dialect.ts'
import { type Latency, summarize } from './latency.ts'
import { postgresDialect } from './postgres-dialect.ts'
import { redisDialect } from './redis-dialect.ts'

export interface LoadOptions {
  readonly target: Target
  readonly connections: number
  /** Load before the measurement, counted in `acknowledged` only. */
  readonly warmupMs: number
  readonly durationMs: number
}

export interface LoadReport {
  readonly acknowledged: number
  readonly perSecond: number
  readonly latency: Latency
  /** Processor use of the generator; near 1, the generator is the bottleneck. */
  readonly busy: number
}

const READ_BYTES = 64 * 1024

/** Runs one measurement. Rejects if a connection fails or a response is not a grant. */
export async function closedLoop(options: LoadOptions): Promise<LoadReport> {
  const { target, connections, warmupMs, durationMs } = options
  const dialect = dialectOf(target)
  const begin = performance.now()
  const from = begin + warmupMs
  const until = from + durationMs
  const latencies: number[] = []
  let acknowledged = 0
  let cpuBefore: NodeJS.CpuUsage | undefined
  let busy = 0

  const acknowledge = (sentAt: number, now: number): boolean => {
    acknowledged += 1
    if (now >= until) {
      if (busy === 0) busy = busyShare(process.cpuUsage(cpuBefore), durationMs)
      return false
    }
    if (now >= from) {
      cpuBefore ??= process.cpuUsage()
      latencies.push(now - sentAt)
    }
    return true
  }
  await Promise.all(
    Array.from({ length: connections }, (_, index) => converse(addressOf(target), index, dialect, acknowledge)),
  )
  return {
    acknowledged,
    perSecond: latencies.length / (durationMs / 1000),
    latency: summarize(latencies),
    busy,
  }
}

function dialectOf(target: Target): Dialect {
  switch (target.protocol) {
    case 'http':
      return httpDialect(target)
    case 'redis':
      return redisDialect(target.command, target.grantAnswer)
    case 'postgres':
      return postgresDialect(target)
  }
}

type Address = { readonly path: string } | { readonly host: string; readonly port: number }

function addressOf(target: Target): Address {
  if (target.protocol === 'http' && target.port !== undefined) return { host: '127.0.0.1', port: target.port }
  return { path: target.socketPath }
}

function converse(
  address: Address,
  index: number,
  dialect: Dialect,
  acknowledge: (sentAt: number, now: number) => boolean,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const { opening } = dialect
    let isOpen = opening === undefined
    let sentAt = 0
    let held: Buffer | undefined
    let done = false

    const send = (): void => {
      const request = dialect.request(index)
      sentAt = performance.now()
      socket.write(request)
    }
    const receive = (bytes: Buffer): void => {
      const all = held === undefined ? bytes : Buffer.concat([held, bytes])
      const length = isOpen || opening === undefined ? dialect.answerLength(all) : opening.answerLength(all)
      if (length === 0) {
        held = Buffer.from(all)
        return
      }
      if (length !== all.length) throw new Error('more came than the one answer that was asked for')
      held = undefined
      if (!isOpen) {
        isOpen = true
        send()
        return
      }
      if (acknowledge(sentAt, performance.now())) {
        send()
        return
      }
      done = true
      socket.destroy()
    }
    const socket: Socket = connect({
      ...address,
      onread: {
        buffer: Buffer.alloc(READ_BYTES),
        callback: (count, buffer) => {
          try {
            receive(Buffer.from(buffer.buffer, buffer.byteOffset, count))
          } catch (error) {
            socket.destroy(error instanceof Error ? error : new Error(String(error)))
          }
          return true
        },
      },
    })
    socket.on('connect', () => {
      if (opening === undefined) send()
      else socket.write(opening.bytes)
    })
    socket.on('error', reject)
    socket.on('close', () => {
      if (done) resolve()
      else reject(new Error('the server closed a connection under way'))
    })
  })
}

function busyShare({ user, system }: NodeJS.CpuUsage, durationMs: number): number {
  return (user + system) / 1000 / durationMs
}
