import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'

const MAIN = fileURLToPath(new URL('../../sim/main.ts', import.meta.url))

test.for([
  [['--seeds', '1-2'], "--seeds takes a whole number, not '1-2'"],
  [['--without', 'RAIN'], 'there is no kind of fault RAIN: '],
  [['--sedes', '1'], "Unknown option '--sedes'"],
] as const)('refuses %j and prints the usage', ([args, reason]) => {
  const { status, stderr } = spawnSync(process.execPath, [MAIN, ...args], { encoding: 'utf8' })
  expect(status).toBe(64)
  expect(stderr).toContain(reason)
  expect(stderr).toMatch(/^.+\n\nnpm run sim -- \[OPTION/)
})
