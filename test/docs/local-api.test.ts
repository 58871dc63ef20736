// The examples of the page on the local API, taken from the page and run against a real agent.
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { beforeEach, describe, expect, it } from 'vitest'
import { temporaryDirectory } from '../agent/harness.ts'
import { INSTANCE } from '../agent/sync/fake-cloud.ts'
import { policyWith } from '../agent/sync/policies.ts'
import { Application, Site } from '../scenarios/agent/site.ts'

const root = new URL('../../', import.meta.url)
const page = readFileSync(new URL('docs/reference/local-api.md', root), 'utf8')

/** The code of the only block in this language. */
function example(language: string): string {
  const blocks = [...page.matchAll(new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, 'gs'))].map(([, code]) => code)
  expect(blocks).toHaveLength(1)
  return blocks[0] ?? ''
}

const has = (tool: string): boolean => spawnSync(tool, ['--version'], { stdio: 'ignore' }).status === 0

let site: Site
let application: Application

beforeEach(async () => {
  site = await Site.make(10n ** 12n)
  const [item] = policyWith(2).lineItems
  const around = { startsAt: Date.now() - 86_400_000, endsAt: Date.now() + 86_400_000 }
  await site.cloud.publish(
    policyWith(2, {
      issuedAt: Date.now(),
      lineItems: [{ ...item!, ...around }],
      rateTables: [
        { series: '', version: '1', effectiveFrom: 1, items: [{ name: 'LaserCut', version: '1.0', rate: '1.5' }] },
      ],
    }),
  )
  application = new Application(await site.start())
  await application.until(({ accounts }) => accounts.some(({ granted }) => granted > 0n))
})

async function run(command: string, args: readonly string[], cwd: string): Promise<string> {
  const env = { ...process.env, TALLYGATE_SOCKET: site.socketPath, INSTANCE }
  const child = spawn(command, args, { cwd, env, stdio: ['ignore', 'pipe', 'inherit'] })
  let said = ''
  child.stdout.on('data', (chunk: Buffer) => (said += chunk.toString()))
  await new Promise((resolve, reject) => child.on('close', resolve).on('error', reject))
  return said
}

/** Two prints of 1.5 tokens, all of it back but for the moment that it took; and no session is left. */
async function expectPaidAndOver(): Promise<void> {
  const { accounts } = await application.until(({ accounts: all }) => all.some(({ refunded }) => refunded > 0n))
  const [account] = accounts.filter(({ used }) => used > 0n)
  expect(account?.used).toBe(3_000_000n)
  expect(account?.refunded).toBeGreaterThan(2_900_000n)
}

describe('the page on the local API', () => {
  it.skipIf(!has('curl'))('has an example for curl that works (needs curl)', async () => {
    const file = join(temporaryDirectory(), 'example.sh')
    writeFileSync(file, example('bash'))
    expect(await run('bash', [file], site.directory)).toBe('200\n204\n204\n')
    await expectPaidAndOver()
  })

  it.skipIf(!has('python3'))('has an example in Python that works (needs python3)', async () => {
    const file = join(temporaryDirectory(), 'example.py')
    writeFileSync(file, example('python'))
    expect(await run('python3', [file], site.directory)).toBe('go\n204\n')
    await expectPaidAndOver()
  })

  it.skipIf(!has('cc'))('has an example in C that compiles without warnings and works (needs cc)', async () => {
    const directory = temporaryDirectory()
    writeFileSync(join(directory, 'example.c'), example('c'))
    const compiled = spawnSync('cc', ['-std=gnu11', '-Wall', '-Wextra', '-Werror', 'example.c', '-o', 'example'], {
      cwd: directory,
      encoding: 'utf8',
    })
    expect(compiled.stderr).toBe('')
    expect(await run(join(directory, 'example'), [], directory)).toBe('go\n')
    await expectPaidAndOver()
  })

  it('has an example for Node that works, by the name that the package exports', async () => {
    const source = pathToFileURL(fileURLToPath(new URL('src/client/agent-client.ts', root))).href
    const { exports } = JSON.parse(readFileSync(new URL('package.json', root), 'utf8')) as {
      exports: Record<string, { default: string; types: string }>
    }
    const target = exports['./client']
    expect([target?.default, target?.types]).toEqual([
      './dist/client/agent-client.js',
      './dist/client/agent-client.d.ts',
    ])
    expect(existsSync(fileURLToPath(source))).toBe(true)
    const file = join(temporaryDirectory(), 'example.mjs')
    const code = example('js')
    expect(code).toContain("from 'tallygate/client'")
    writeFileSync(file, code.replace("'tallygate/client'", JSON.stringify(source)))
    expect(await run(process.execPath, [file], site.directory)).toBe('go\n')
    await expectPaidAndOver()
  })

  it('names every call that the socket answers to', async () => {
    const text = readFileSync(new URL('src/agent/platform/socket/parse-request.ts', root), 'utf8')
    for (const operation of text.matchAll(/'(POST|GET|PUT|DELETE) (sessions|session|heartbeat)'/g)) {
      const path =
        { sessions: 'sessions`', session: 'sessions/{id}`', heartbeat: 'heartbeat`' }[operation[2] ?? ''] ?? ''
      expect(page).toMatch(new RegExp(`\`${operation[1]} [^\`]*${path.replaceAll(/[{}/]/g, '\\$&')}`))
    }
  })
})
