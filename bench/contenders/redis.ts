/**
 * Redis or Valkey with the debit as a script. `always`: one flush per event loop turn before the responses. `everysec`: one a
 * second, so a power cut loses answered debits.
 */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import type { Contender } from './contender.ts'
import { askRedis } from './redis-client.ts'

const START_MS_MAX = 10_000
const FUNDS = 9_000_000_000_000_000

export type RedisProgram = 'redis-server' | 'valkey-server'

/** Undefined: not installed. */
export function redisVersion(program: RedisProgram): string | undefined {
  const { stdout, status } = spawnSync(program, ['--version'], { encoding: 'utf8' })
  return status === 0 ? (/v=(\S+)/.exec(stdout)?.[1] ?? 'unknown') : undefined
}

export interface RedisPlan {
  readonly name: string
  readonly program: RedisProgram
  readonly flush: 'always' | 'everysec'
  /** Text of one ledger record. */
  readonly entryBytes: number
}

export function redis({ name, program, flush, entryBytes }: RedisPlan): Contender {
  return {
    name,
    async start({ directory, socketPath }) {
      const child = spawn(
        program,
        [
          ...['--port', '0', '--unixsocket', socketPath, '--dir', directory, '--save', '', '--loglevel', 'warning'],
          ...['--appendonly', 'yes', '--appendfsync', flush, '--auto-aof-rewrite-percentage', '0'],
        ],
        { stdio: 'ignore' },
      )
      const exit = once(child, 'exit')
      const giveUpAt = performance.now() + START_MS_MAX
      while (!existsSync(socketPath)) {
        if (child.exitCode !== null || performance.now() > giveUpAt) throw new Error(`${program} does not start`)
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
