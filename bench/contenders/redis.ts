/**
 * Redis at its most durable (`appendfsync always`: one flush per event loop turn before the responses), with the debit
 * as a script. Needs `redis-server` on PATH.
 */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import type { Contender } from './contender.ts'
import { askRedis } from './redis-client.ts'

const START_MS_MAX = 10_000
const FUNDS = 9_000_000_000_000_000

/** Undefined: Redis is not installed. */
export function redisVersion(): string | undefined {
  const { stdout, status } = spawnSync('redis-server', ['--version'], { encoding: 'utf8' })
  return status === 0 ? (/v=(\S+)/.exec(stdout)?.[1] ?? 'unknown') : undefined
}

/** @param entryBytes text of one ledger record */
export function redis(entryBytes: number): Contender {
  return {
    name: 'redis',
    async start({ directory, socketPath }) {
      const child = spawn(
        'redis-server',
        [
          ...['--port', '0', '--unixsocket', socketPath, '--dir', directory, '--save', '', '--loglevel', 'warning'],
          ...['--appendonly', 'yes', '--appendfsync', 'always', '--auto-aof-rewrite-percentage', '0'],
        ],
        { stdio: 'ignore' },
      )
      const exit = once(child, 'exit')
      const giveUpAt = performance.now() + START_MS_MAX
      while (!existsSync(socketPath)) {
        if (child.exitCode !== null || performance.now() > giveUpAt) throw new Error('redis-server does not start')
        await delay(20)
      }
      await askRedis(socketPath, 'SET', 'line', String(FUNDS))
      await askRedis(socketPath, 'SET', 'action', String(FUNDS))
      const script = readFileSync(new URL('./redis-debit.lua', import.meta.url), 'utf8')
      const sha = await askRedis(socketPath, 'SCRIPT', 'LOAD', script)
      return {
        target: {
          protocol: 'redis',
          socketPath,
          command: ['EVALSHA', sha, '3', 'line', 'action', 'ledger', '1', 'e'.repeat(entryBytes)],
          grantAnswer: ':1\r\n',
        },
        pid: child.pid ?? 0,
        async killAndCount() {
          const [line, action, entries] = [
            FUNDS - Number(await askRedis(socketPath, 'GET', 'line')),
            FUNDS - Number(await askRedis(socketPath, 'GET', 'action')),
            Number(await askRedis(socketPath, 'LLEN', 'ledger')),
          ]
          child.kill('SIGKILL')
          await exit
          if (line !== entries || action !== entries) throw new Error('the counters of Redis disagree')
          return entries
        },
      }
    },
  }
}
