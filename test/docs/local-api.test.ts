// The example of the page on the local API, taken from the page and run against a real agent.
import { spawn, spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { localOperations } from '../../scripts/local-api.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { openWorkshop } from './workshop.ts'

const root = new URL('../../', import.meta.url)
const page = readFileSync(new URL('docs/reference/local-api.md', root), 'utf8')

const has = (tool: string): boolean => spawnSync(tool, ['--version'], { stdio: 'ignore' }).status === 0

describe('the page on the local API', () => {
  it.skipIf(!has('curl'))('has an example for curl that works (needs curl)', async () => {
    const { site, application } = await openWorkshop()
    const [[, code = ''] = [], ...others] = [...page.matchAll(/```bash\n(.*?)```/gs)]
    expect(others).toEqual([])
    const file = join(temporaryDirectory(), 'example.sh')
    writeFileSync(file, code)
    const env = { ...process.env, TALLYGATE_SOCKET: site.socketPath }
    const shell = spawn('bash', [file], { env, stdio: ['ignore', 'pipe', 'inherit'] })
    let said = ''
    shell.stdout.on('data', (chunk: Buffer) => (said += chunk.toString()))
    await new Promise((resolve, reject) => shell.on('close', resolve).on('error', reject))
    expect(said).toBe('200\n204\n204\n')
    // A cut of 2.5 minutes at 0.85 tokens, all of it returned but for the moment that it took.
    const { accounts } = await application.until(({ accounts: all }) => all.some(({ refunded }) => refunded > 0n))
    const account = accounts.find(({ used }) => used > 0n)
    expect(account?.used).toBe(2_125_000n)
    expect(account?.refunded).toBeGreaterThan(2_000_000n)
  })

  it('lists exactly the operations of the socket', () => {
    const inTable = [...page.matchAll(/^\| `([A-Z]+) (\S+)`/gm)].map(([, method = '', path = '']) => {
      return `${method} ${path.replace('...', '/dynamicmonetization/api/{V}')}`
    })
    const served = localOperations.map(
      ({ method, paths: [path = ''] }) => `${method} ${path.replace('/v1.1/', '/{V}/')}`,
    )
    const withoutNames = (operation: string): string => operation.replaceAll(/\{\w+\}/g, '{}')
    expect(inTable.map(withoutNames).toSorted()).toEqual(served.map(withoutNames).toSorted())
  })
})
