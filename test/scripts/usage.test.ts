import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))

const run = (script: string, argument: string) =>
  spawnSync(process.execPath, [script, argument], { cwd: ROOT, encoding: 'utf8' })

describe.each([
  'bench/cloud.ts',
  'bench/console.ts',
  'bench/decide.ts',
  'bench/decisions.ts',
  'bench/delivery.ts',
  'bench/fleet.ts',
  'bench/history.ts',
  'bench/memory.ts',
  'bench/push.ts',
  'bench/wear.ts',
  'crash/main.ts',
  'mutation/run.ts',
  'scripts/build.ts',
  'scripts/check.ts',
  'scripts/docs.ts',
  'scripts/package.ts',
  'scripts/release.ts',
  'scripts/screenshots.ts',
  'sim/main.ts',
])('%s', (script) => {
  it('prints its usage for --help', () => {
    const { status, stdout, stderr } = run(script, '--help')
    expect([status, stderr]).toEqual([0, ''])
    expect(stdout).toMatch(/^(npm run|node) /)
  })

  it('refuses an unknown argument with exit code 64 and its usage', () => {
    const { status, stdout, stderr } = run(script, 'nonsense')
    expect([status, stdout]).toEqual([64, ''])
    expect(stderr).toMatch(/^.+\n\n(npm run|node) /)
  })
})
