/** Cerbos, an engine that only decides: the same condition, without a charge and without a record. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { Contender } from './contender.ts'

const START_MS_MAX = 20_000

/** Undefined: `cerbos` is not on PATH. */
export function cerbosVersion(): string | undefined {
  const { stdout, status } = spawnSync('cerbos', ['--version'], { encoding: 'utf8' })
  return status === 0 ? (/(\d+\.\d+\.\d+)/.exec(stdout)?.[1] ?? 'unknown') : undefined
}

/** JSON, which is YAML as well. */
const POLICY = {
  apiVersion: 'api.cerbos.dev/v1',
  resourcePolicy: {
    resource: 'item',
    version: 'default',
    rules: [
      {
        actions: ['use'],
        effect: 'EFFECT_ALLOW',
        roles: ['operator', 'engineer'],
        condition: { match: { expr: '!(P.attr.site in ["plant-1", "plant-2"]) && R.attr.version == "2.1"' } },
      },
    ],
  },
}

const BODY = JSON.stringify({
  requestId: 'bench',
  principal: { id: 'press-00', roles: ['operator'], attr: { site: 'plant-3' } },
  resources: [{ actions: ['use'], resource: { kind: 'item', id: 'vision-inspection', attr: { version: '2.1' } } }],
})

export const cerbos: Contender = {
  name: 'cerbos (no charge)',
  async start({ directory, socketPath }) {
    const policies = join(directory, 'policies')
    mkdirSync(policies)
    writeFileSync(join(policies, 'item.json'), JSON.stringify(POLICY))
    const config = join(directory, 'cerbos.json')
    const server = { httpListenAddr: `unix:${socketPath}`, grpcListenAddr: `unix:${socketPath}-grpc` }
    const storage = { driver: 'disk', disk: { directory: policies, watchForChanges: false } }
    writeFileSync(config, JSON.stringify({ server, storage, telemetry: { disabled: true } }))
    // A process group: the command of npm starts the server, and would end without it.
    const child = spawn('cerbos', ['server', '--config', config, '--log-level', 'error'], {
      detached: true,
      stdio: 'ignore',
    })
    const { pid } = child
    if (pid === undefined) throw new Error('cerbos does not start')
    const exit = once(child, 'exit')
    const giveUpAt = performance.now() + START_MS_MAX
    while (!existsSync(socketPath)) {
      if (child.exitCode !== null || performance.now() > giveUpAt) throw new Error('cerbos does not start')
      await delay(20)
    }
    return {
      target: {
        protocol: 'http',
        socketPath,
        paths: ['/api/check/resources'],
        bodies: [BODY],
        grantMark: '"EFFECT_ALLOW"',
      },
      pid,
      async killAndCount() {
        process.kill(-pid, 'SIGTERM')
        await exit
        return null
      },
    }
  },
}
