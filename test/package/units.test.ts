// The units speak of the same paths and settings as the code.
import { readFileSync, readdirSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { agentOptions } from '../../src/agent/settings.ts'
import { cloudOptions } from '../../src/cloud/settings.ts'
import { ERRORS } from '../../src/protocol/errors.ts'
import { namedOptions } from '../../src/settings/option.ts'

const folder = new URL('../../systemd/', import.meta.url)

function values(unit: string, key: string): readonly string[] {
  const lines = readFileSync(new URL(unit, folder), 'utf8').split('\n')
  return lines.filter((line) => line.startsWith(`${key}=`)).map((line) => line.slice(key.length + 1))
}

const fallback = (table: typeof agentOptions | typeof cloudOptions, key: string): unknown =>
  namedOptions(table).find((option) => option.key === key)?.option.default

const SERVICES = [
  ['tallygate-agent.service', agentOptions],
  ['tallygate-cloud.service', cloudOptions],
] as const

describe('the units', () => {
  it('have the directories and the socket where the programs look for them', () => {
    expect(values('tallygate-agent.socket', 'ListenStream')).toEqual([fallback(agentOptions, 'socket.path')])
    expect(values('tallygate-agent.socket', 'SocketMode')).toEqual([fallback(agentOptions, 'socket.mode')])
    expect(`/var/lib/${values('tallygate-agent.service', 'StateDirectory')[0]!}`).toBe(
      fallback(agentOptions, 'state.directory'),
    )
    expect(`/var/lib/${values('tallygate-cloud.service', 'StateDirectory')[0]!}`).toBe(
      fallback(cloudOptions, 'store.path'),
    )
  })

  it.each(SERVICES)('%s sets only variables that are settings', (unit, table) => {
    const known = namedOptions(table).map(({ env }) => env)
    const examples = readdirSync(new URL('examples/', folder)).map((name) => `examples/${name}`)
    const set = [unit, ...examples].flatMap((each) => values(each, 'Environment')).map((text) => text.split('=')[0]!)
    const ours = set.filter((name) => name.startsWith(table.envPrefix))
    expect(ours.filter((name) => !known.includes(name))).toEqual([])
    if (unit === 'tallygate-agent.service') expect(ours).toHaveLength(3)
  })

  it('close the socket for the failures after which the agent is not started again', () => {
    const [final = ''] = values('tallygate-agent.service', 'RestartPreventExitStatus')
    const [stop = ''] = values('tallygate-agent.service', 'ExecStopPost')
    expect(stop).toContain(
      ` in ${final.replaceAll(' ', '|')}) systemctl --no-block --job-mode=ignore-dependencies stop tallygate-agent.socket;;`,
    )
  })

  it.each(['docs/how-to/operate-devices.md', 'src/agent/diagnostics/health-status.ts'])(
    'are both stopped in %s, because a caller at the socket would start the agent again',
    (name) => {
      const text = readFileSync(new URL(`../../${name}`, import.meta.url), 'utf8')
      const stops = [...text.matchAll(/systemctl stop ([\w. -]*)/g)].map(([, units = '']) => units)
      const ofAgent = stops.filter((units) => units.includes('tallygate-agent'))
      expect(ofAgent).not.toEqual([])
      for (const units of ofAgent) expect(units).toContain('tallygate-agent.socket tallygate-agent')
    },
  )

  it.each(SERVICES)('%s keeps trying after every failure but those that no restart cures', (unit) => {
    const final = values(unit, 'RestartPreventExitStatus')[0]!.split(' ').map(Number)
    for (const code of ['USAGE', 'CONFIG_INVALID', 'DATABASE_NEWER', 'DATABASE_CORRUPT'] as const) {
      expect(final).toContain(ERRORS[code].exit)
    }
    // Callers of the agent wait in its socket; those of the cloud are refused anyway.
    expect(final.includes(ERRORS.DEVICE_KEY_UNUSABLE.exit)).toBe(unit === 'tallygate-agent.service')
    for (const code of [
      'DISK_FAILED',
      'STATE_UNWRITABLE',
      'STATE_IN_USE',
      'ADDRESS_IN_USE',
      'ADDRESS_NOT_PERMITTED',
    ] as const) {
      expect(final).not.toContain(ERRORS[code].exit)
    }
  })
})
