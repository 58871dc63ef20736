// The page on the sign-in: its settings are accepted, and its commands run against a real provider.
import { spawn } from 'node:child_process'
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { cloudOptions } from '../../src/cloud/settings.ts'
import { loadSettings } from '../../src/settings/load.ts'
import { openTwin } from '../cloud/harness.ts'
import { CLIENT_ID, RealProvider, browse } from '../support/real-provider.ts'
import { COMMAND } from '../support/command.ts'

const root = new URL('../../', import.meta.url)
const page = readFileSync(new URL('docs/how-to/sign-in.md', root), 'utf8')

function example(language: string): string {
  const blocks = [...page.matchAll(new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, 'gs'))].map(([, code]) => code)
  expect(blocks).toHaveLength(1)
  return blocks[0] ?? ''
}

it('the settings of the page are accepted', () => {
  const sources = { file: 'cloud.toml', env: {}, flags: {}, readText: () => example('toml') }
  const { oidc } = loadSettings(cloudOptions, sources)
  expect(oidc.access?.map(({ value, roles }) => [value, roles])).toEqual([
    ['tallygate-admins', ['operator', 'rules', 'keys']],
    ['plant-7', ['operator']],
  ])
})

it('the commands of the page run', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-docs-'))
  await using provider = await RealProvider.start()
  await using twin = await openTwin((settings) => {
    const access = [{ value: 'admins', roles: ['read' as const] }]
    return { ...settings, oidc: { ...settings.oidc, issuer: provider.issuer, clientId: CLIENT_ID, access } }
  })
  twin.followMachine()
  const program = join(directory, 'tallygate')
  writeFileSync(program, `#!/bin/sh\nexec "${process.execPath}" "${COMMAND}" "$@"\n`)
  chmodSync(program, 0o755)
  const env = { PATH: `${directory}:${process.env['PATH'] ?? ''}`, HOME: directory, CLOUD: twin.cloud.address }
  // With a socket as standard input, bash would read the start file of the machine.
  const shell = spawn('bash', ['-euo', 'pipefail', '-c', example('sh')], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  let [out, err] = ['', '']
  shell.stdout.on('data', (chunk: Buffer) => (out += chunk.toString()))
  shell.stderr.on('data', (chunk: Buffer) => {
    const before = err
    err += chunk.toString()
    const [address, code] = [/http:\S+/.exec(err)?.[0], /[A-Z]{4}-[A-Z]{4}/.exec(err)?.[0]]
    if (code !== undefined && !before.includes(code)) void browse(`${address}?user_code=${code}`, 'grace')
  })
  const status = await new Promise((resolve) => shell.on('close', resolve))
  rmSync(directory, { recursive: true })
  expect({ status, err: err.replace(/^Open .*\n/, '') }).toEqual({ status: 0, err: '' })
  expect(out).toMatch(/^Signed in to .* as Grace Hopper \(grace at .*\)\.\nRoles: read/)
  expect(out).toMatch(/user +Grace Hopper/)
  expect(out).toContain('No devices.')
  expect(out).toMatch(/Signed out of .*\n$/)
}, 120_000)
