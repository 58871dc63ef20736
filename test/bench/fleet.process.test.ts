// The benchmark itself, with a few devices: it fails if the books of the cloud and of the devices differ.
import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { expect, it, onTestFinished } from 'vitest'

const PROGRAM = new URL('../../bench/fleet.ts', import.meta.url).pathname

it('measures a small fleet, whose books agree to the micro-token', { timeout: 180_000 }, async () => {
  const directory = await mkdtemp(join(tmpdir(), 'tallygate-fleet-'))
  onTestFinished(async () => rm(directory, { recursive: true }))
  const size = ['--devices', '6', '--instances', '2', '--rounds', '1', '--connections', '3', '--processes', '2']
  const args = [PROGRAM, ...size, '--store', 'sqlite', '--state-dir', directory, '--markdown']
  const { stdout } = await promisify(execFile)(process.execPath, args)
  expect(stdout).toContain('All 3 accounts agree with their devices to the micro-token.')
  expect(stdout).toMatch(/^\| shared line item 2 +\| +6 \|/m)
  expect(stdout).toMatch(/^1,000,000 devices at 300 s, by proportion: 3333 syncs\/s, /m)
})
