// The page on a staged rollout: its files are applied and its commands run, in their order, with devices that enroll between them.
import { execFile } from 'node:child_process'
import { chmodSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { temporaryDirectory } from '../agent/harness.ts'
import { EdgeClient } from '../cloud/devices/edge-client.ts'
import { openTwin } from '../cloud/harness.ts'
import { COMMAND } from '../support/command.ts'

const root = new URL('../../', import.meta.url)
const page = readFileSync(new URL('docs/how-to/staged-rollout.md', root), 'utf8')

function blocksOf(language: string): readonly string[] {
  const blocks = page.matchAll(new RegExp(`^( *)\`\`\`${language}\n(.*?)\`\`\``, 'gms'))
  return [...blocks].map(([, indent = '', code = '']) => code.replaceAll(new RegExp(`^${indent}`, 'gm'), ''))
}

it('the files and commands of the page run in their order', { timeout: 120_000 }, async () => {
  await using twin = await openTwin()
  twin.followMachine()
  const directory = temporaryDirectory()
  const program = join(directory, 'tallygate')
  writeFileSync(program, `#!/bin/sh\nexec "${process.execPath}" "${COMMAND}" "$@"\n`)
  chmodSync(program, 0o755)
  const [site = '', pilot = ''] = blocksOf('yaml')
  writeFileSync(join(directory, 'site.yaml'), site)
  writeFileSync(join(directory, 'pilot.yaml'), pilot)
  const env = {
    PATH: `${directory}:${process.env['PATH'] ?? ''}`,
    HOME: directory,
    TALLYGATE_URL: twin.cloud.address,
    TALLYGATE_ADMIN_KEY: twin.cloud.administrationKeyFile,
  }
  const run = async (block: string): Promise<string> => {
    const options = { env, cwd: directory }
    return (await promisify(execFile)('bash', ['--norc', '-euo', 'pipefail', '-c', block], options)).stdout
  }

  const [first = '', ...rest] = blocksOf('sh')
  expect(await run(first)).toMatch(/5 created, 0 changed, 0 unchanged\.\n$/)
  for (const name of ['press-1', 'press-2', 'press-3']) {
    await EdgeClient.join(twin, '', 'ES256', readFileSync(join(directory, `${name}.token`), 'utf8').trim())
  }
  const outputs: string[] = []
  for (const block of rest) outputs.push(await run(block))
  const [applied, looked, all, back, named, canary, others, version] = outputs
  expect(applied).toMatch(/attributes\.rateTableSeries: laser -> laser-2027\n1 created, 1 changed, 1 unchanged\.\n$/)
  expect(looked).toMatch(/press-1[^]*press-2/)
  expect(looked).not.toContain('press-3')
  expect(all).toMatch(/~ line item LASER-BONN of Bonn\n.*laser -> laser-2027\n0 created, 1 changed, 4 unchanged\.\n$/)
  expect(back).toMatch(/0 created, 2 changed, 3 unchanged\.\n$/)
  expect(named).toBe('')
  expect(canary).toMatch(/^press-1 {2}done\n1 done, 0 refused\.\n[^]*press-1/)
  expect(others).toBe(
    'press-1  done\npress-2  done\n2 done, 0 refused.\nrollout=second site=bonn\npress-3  done\n1 done, 0 refused.\n',
  )
  expect(JSON.parse(version ?? '')).toMatchObject({ name: 'press-1', labels: { rollout: 'canary', site: 'berlin' } })
  expect(JSON.parse(version ?? '')).toHaveProperty('software')
  expect(outputs).toHaveLength(8)
})
