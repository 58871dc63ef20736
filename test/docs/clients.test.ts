// The page on the clients: each program is taken from it and run, with the commands of the page, against a real agent.
import { spawn, spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, it, type TestContext } from 'vitest'
import { temporaryDirectory } from '../agent/harness.ts'
import { LANGUAGES, missingTool } from '../sdk/driver.ts'
import { skip } from '../support/program.ts'
import { openWorkshop } from './workshop.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const page = readFileSync(join(root, 'docs/how-to/clients.md'), 'utf8')

/** The blocks of code below a heading, by language. */
function blocksUnder(heading: string): ReadonlyMap<string, string> {
  const [, after = ''] = page.split(`\n## ${heading}\n`)
  const [section = ''] = after.split('\n## ')
  return new Map([...section.matchAll(/```(\w+)\n([^]*?)```/g)].map(([, language = '', code = '']) => [language, code]))
}

function needs(context: TestContext, name: string): void {
  const language = LANGUAGES.find((each) => each.name === name)
  const reason = language === undefined ? undefined : missingTool(language)
  if (reason !== undefined) skip(context, reason)
}

/** Like `npm install` of the page. */
function installClient(directory: string): void {
  const target = join(directory, 'node_modules/@tallygate/client')
  mkdirSync(target, { recursive: true })
  copyFileSync(join(root, 'sdk/node/package.json'), join(target, 'package.json'))
  const compiler = join(root, 'node_modules/typescript-7/bin/tsc')
  const args = [compiler, '-p', join(root, 'sdk/node'), '--outDir', join(target, 'dist')]
  const { stdout, status } = spawnSync(process.execPath, args, { encoding: 'utf8' })
  expect({ stdout, status }).toEqual({ stdout: '', status: 0 })
}

/** The first Go program compiles the standard library. */
const BUILD_MS_MAX = 300_000

it.for([
  ['Node', 'js', 'laser.mjs'],
  ['Python', 'python', 'laser.py'],
  ['Go', 'go', 'laser.go'],
  ['C', 'c', 'laser.c'],
] as const)(
  'the program in %s works as the page says',
  { timeout: BUILD_MS_MAX },
  async ([name, language, file], context) => {
    needs(context, name)
    const blocks = blocksUnder(name)
    const { site, application } = await openWorkshop()
    const directory = temporaryDirectory()
    symlinkSync(join(root, 'sdk'), join(directory, 'sdk'))
    if (name === 'Node') installClient(directory)
    writeFileSync(join(directory, file), blocks.get(language) ?? '')
    const env = { ...process.env, TALLYGATE_SOCKET: site.socketPath, GOFLAGS: '-mod=mod', GOPROXY: 'off' }
    const shell = spawn('bash', ['--norc', '-euo', 'pipefail', '-c', blocks.get('sh') ?? 'exit 1'], {
      cwd: directory,
      env,
    })
    let [out, err] = ['', '']
    shell.stdout.on('data', (chunk: Buffer) => (out += chunk.toString()))
    shell.stderr.on('data', (chunk: Buffer) => (err += chunk.toString()))
    const status = await new Promise((resolve) => shell.on('close', resolve))
    const [, expected] = /```text\n([^]*?)```/.exec(page) ?? []
    // The Go command reports its steps there.
    expect({ status, out, err: name === 'Go' ? '' : err }).toEqual({ status: 0, out: expected, err: '' })
    // One cut once, and one in a session whose unused part was returned.
    const { accounts } = await application.until((now) => now.accounts.some(({ refunded }) => refunded > 0n))
    expect(accounts.find(({ used }) => used > 0n)?.used).toBe(4_250_000n)
  },
)
