// `tallygate dev` as a process, used from another shell as it says.
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { expect, it, onTestFinished } from 'vitest'
import { temporaryDirectory } from '../agent/harness.ts'
import { readOnlyView } from '../support/mounts.ts'
import { tallygate } from './outside.ts'
import { COMMAND } from '../support/command.ts'

interface Dev {
  readonly child: ChildProcess
  readonly lines: readonly string[]
  readonly ended: Promise<number | null>
}

/** Started, with what it has printed. */
async function dev(...args: readonly string[]): Promise<Dev> {
  const child = spawn(process.execPath, [COMMAND, 'dev', ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  onTestFinished(() => void child.kill('SIGINT'))
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
  const lines: string[] = []
  await new Promise<void>((resolve, reject) => {
    createInterface({ input: child.stdout }).on('line', (line) => {
      lines.push(line)
      if (line.startsWith('Stop with')) resolve()
    })
    createInterface({ input: child.stderr }).on('line', (line) => lines.push(line))
    void ended.then((code) => reject(new Error(`ended with ${code}: ${lines.join('\n')}`)))
  })
  return { child, lines, ended }
}

const pidIn = (lines: readonly string[], name: string): number =>
  Number(new RegExp(`^${name} .*\\(process (\\d+)\\)`, 'm').exec(lines.join('\n'))?.[1])

const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

/** What a shell prints that has read the file `env`. */
async function shell(directory: string, line: string): Promise<string> {
  const script = `. '${directory}/env'; ${line}`
  return (await promisify(execFile)('sh', ['-euc', script], { env: { PATH: process.env['PATH'] ?? '' } })).stdout
}

const ACCESS = 'tallygate access --item LaserCut --item-version 1.0 --count 2.5 --requester user:anna'

it.each(['{', '{"http":"x","push":1}', '{"http":1,"push":99999999}'])('refuses the damaged ports %s', async (text) => {
  const directory = temporaryDirectory()
  writeFileSync(join(directory, 'ports.json'), text)
  const { code, err } = await tallygate(['dev', '--directory', directory], {
    readText: (path) => readFileSync(path, 'utf8'),
  })
  expect([code, err]).toEqual([
    78,
    expect.stringMatching(/ports\.json is damaged\. Give an empty directory with --directory\.\n$/),
  ])
})

it('refuses a directory in which it cannot write', async ({ skip }) => {
  const directory = readOnlyView(skip, temporaryDirectory())
  const { code, err } = await tallygate(['dev', '--directory', directory])
  expect([code, err]).toEqual([73, expect.stringContaining(`OUTPUT_UNWRITABLE: Cannot write ${directory}:`)])
})

it.each([
  [78, 'ports.json', 'CONFIG_UNREADABLE: Cannot read '],
  [73, 'cloud.log', 'OUTPUT_UNWRITABLE: Cannot write '],
  [73, 'env', 'OUTPUT_UNWRITABLE: Cannot write '],
])(
  'ends with %i if %s in the directory cannot be used',
  async (exit, name, problem) => {
    const directory = temporaryDirectory()
    mkdirSync(join(directory, name))
    const ended = promisify(execFile)(process.execPath, [COMMAND, 'dev', '--directory', directory])
    await expect(ended).rejects.toMatchObject({
      code: exit,
      stderr: expect.stringContaining(`${problem}${join(directory, name)}: it is a directory.`) as string,
    })
  },
  60_000,
)

it('serves a site until Ctrl-C, also without its cloud, and continues in a named directory', async () => {
  const directory = join(temporaryDirectory(), 'my workshop')
  const first = await dev('--directory', directory)
  expect(statSync(directory).mode & 0o777).toBe(0o700)
  expect(first.lines).toContain(`  . '${join(directory, 'env')}'`)
  expect(await shell(directory, ACCESS)).toBe('allowed: 2.125 tokens, 2.125 from FIRST-1000\n')
  const client = new URL('../../sdk/node/src/index.ts', import.meta.url).href
  const program = `const { connect } = await import('${client}'); console.log((await connect().offers()).instances.length)`
  expect(await shell(directory, `'${process.execPath}' --input-type=module -e "${program}"`)).toBe('1\n')
  expect(await shell(directory, 'tallygate line-items list')).toMatch(/FIRST-1000 +DEPLOYED +1,000/)
  // One that cannot start leaves the files of the first.
  await expect(promisify(execFile)(process.execPath, [COMMAND, 'dev', '--directory', directory])).rejects.toMatchObject(
    {
      stderr: expect.stringContaining('STATE_IN_USE') as string,
    },
  )
  const doctor = await shell(directory, 'tallygate doctor --all --no-network || true')
  expect(doctor).toMatch(/^ok +database +/m)
  const [cloud, agent] = [pidIn(first.lines, 'Cloud'), pidIn(first.lines, 'Agent')]
  process.kill(cloud, 'SIGTERM')
  await expect.poll(() => isAlive(cloud)).toBe(false)
  expect(await shell(directory, ACCESS)).toBe('allowed: 2.125 tokens, 2.125 from FIRST-1000\n')
  first.child.kill('SIGINT')
  expect(await first.ended).toBe(0)
  const temporary = [join(directory, 'env'), join(directory, 'cloud.pid')]
  expect([isAlive(agent), ...temporary.map((file) => existsSync(file))]).toEqual([false, false, false])

  const second = await dev('--directory', directory)
  expect(await shell(directory, 'tallygate status')).toMatch(/FIRST-1000 +[\d,.]+ +4\.25\n/)
  // The agent has reached the cloud at its old address.
  await expect.poll(() => shell(directory, 'tallygate usage list'), { timeout: 20_000 }).toMatch(/LaserCut +2\.5/)
  second.child.kill('SIGINT')
  expect(await second.ended).toBe(0)
}, 90_000)

it('prints a request that its site grants, also with several instances', async () => {
  const directory = temporaryDirectory()
  const site = join(directory, 'own.yaml')
  const instance = (name: string) => ({
    shortName: name,
    accountId: name,
    lineItems: [{ activationId: `POOL-${name}`, quantity: 100 }],
  })
  const items = [{ name: "Ana's print", version: 'A 4', rate: 2 }]
  const rateTables = [{ version: '1', effectiveFrom: 0, items }]
  writeFileSync(site, JSON.stringify({ rateTables, instances: [instance('North'), instance('South')] }))
  const { lines } = await dev('--directory', directory, '-f', site)
  const access = lines.find((line) => line.includes('tallygate access')) ?? ''
  expect(await shell(directory, access)).toMatch(/^allowed: 5 tokens, 5 from POOL-(North|South)\n$/)
  const at = lines.findIndex((line) => line.includes('curl'))
  expect(await shell(directory, lines.slice(at, at + 2).join('\n'))).toContain('"totalTokensCharged":5')
}, 60_000)

it('starts no agent if it is stopped before', async () => {
  const directory = temporaryDirectory()
  const stopped = await tallygate(['dev', '--directory', directory], {
    stop: () => AbortSignal.abort(),
    now: Date.now,
    readText: (path) => readFileSync(path, 'utf8'),
  })
  expect(stopped).toEqual({ code: 0, out: '', err: '' })
  expect(readdirSync(directory)).not.toContain('agent.log')
})

it('removes a temporary directory at its end', async () => {
  const { child, lines, ended } = await dev()
  const directory = /^Files +(\S+):/m.exec(lines.join('\n'))![1]!
  expect(readFileSync(join(directory, 'site.yaml'), 'utf8')).toContain('FIRST-1000')
  child.kill('SIGINT')
  expect(await ended).toBe(0)
  expect(existsSync(directory)).toBe(false)
}, 60_000)

it('ends with the reason when its agent is killed', async () => {
  const { lines, ended } = await dev()
  const before = lines.length
  process.kill(pidIn(lines, 'Agent'), 'SIGKILL')
  expect(await ended).toBe(70)
  // The directory with the log is gone, and the agent does not continue without the cloud.
  expect(lines.slice(before)).toEqual([
    expect.stringMatching(/DEMO_FAILED: The agent ended with SIGKILL\. Run it again with .*--directory/),
  ])
}, 60_000)

it('ends with the reason when the site cannot be applied', async () => {
  const ended = promisify(execFile)(process.execPath, [COMMAND, 'dev', '-f', '/no/site.yaml'])
  await expect(ended).rejects.toMatchObject({
    code: 64,
    stderr: expect.stringContaining('USAGE: Cannot read /no/site.yaml: there is no such file.') as string,
  })
}, 60_000)
