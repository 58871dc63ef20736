import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { newKeyPair } from '../cloud/harness.ts'
import { TwinProcess } from '../cloud/twin-process.ts'
import type { Ran } from '../cli/outside.ts'

const RUN = fileURLToPath(new URL('../../conformance/run.ts', import.meta.url))

const conformance = (...args: readonly string[]): Promise<Ran> =>
  new Promise((resolve) => {
    execFile(process.execPath, [RUN, ...args], (error, out, err) => {
      resolve({ code: error === null ? 0 : Number(error.code), out, err })
    })
  })

describe('npm run conformance', () => {
  let directory: string
  let twin: TwinProcess
  let target: readonly string[]
  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'tallygate-conformance-'))
    twin = await TwinProcess.start(['--store-path', join(directory, 'cloud')])
    target = ['--url', `${twin.address}/`, '--admin-key', join(directory, 'cloud', 'administration-key.pem')]
  })
  afterAll(async () => {
    await twin[Symbol.asyncDispose]()
    rmSync(directory, { recursive: true })
  })

  it('asks a running twin, and says what it could not show', async () => {
    const file = join(directory, 'junit.xml')
    const { code, out, err } = await conformance(...target, '--only', 'heartbeat', '--junit', file)
    expect([code, err]).toEqual([0, ''])
    expect(out).toMatch(/^ok {3}Endpoints, GET sessions\/{sessionId}\/heartbeat: .* \[v1\.0\] \(\d+ ms\)$/m)
    expect(out).toMatch(/^-- {3}Heartbeat: no heartbeat is needed .* \[v1\.1\]: not shown, needs a clock$/m)
    expect(out).toMatch(/^\d+ passed, 0 failed, \d+ not shown$/m)
    expect(readFileSync(file, 'utf8')).toContain('failures="0"')
  })

  it('gives the results as JSON', async () => {
    const { out } = await conformance(...target, '--only', 'timezone', '--version', 'v1.0', '--json')
    const results = JSON.parse(out) as { version: string; outcome: string; because?: string }[]
    expect(results.map(({ version, outcome }) => [version, outcome])).toEqual([
      ['v1.0', 'not shown'],
      ['v1.0', 'passed'],
    ])
    expect(results[0]?.because).toBe('needs a server for tests (--scratch)')
  })

  it('ends with 2 where nothing can be asked', async () => {
    const key = join(directory, 'other.pem')
    writeFileSync(key, newKeyPair().privatePem)
    const [url, address] = target
    expect(await conformance(url!, address!, '--admin-key', key)).toMatchObject({ code: 2, out: '' })
    const closed = ['--url', `unix:${directory}/no.sock`, '--admin-key', key]
    expect((await conformance(...closed)).err).toContain(`unix:${directory}/no.sock does not respond: `)
    expect(await conformance(...target, '--only', 'no check is called so')).toMatchObject({ code: 2 })
    expect(await conformance(...target, '--version', 'v2')).toMatchObject({ code: 2 })
    expect((await conformance()).err).toContain('--url <address with prefix>')
  })
})
