/** Runs a cloud and an agent with a sample site on this machine, as separate processes. */
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Command } from 'commander'
import { z } from 'zod'
import { HttpClient } from '../../client/http.ts'
import { COMMAND, killRunning, startService } from '../../demo/service-process.ts'
import { enrollmentTokenResponse } from '../../protocol/edge/enrollment.ts'
import { CodedError } from '../../protocol/errors.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { AGENT_OFFERS_PATH, type OffersWire, offers } from '../../protocol/local/offers.ts'
import { AGENT_STATUS_PATH, agentStatus } from '../../protocol/local/status.ts'
import { administrator } from '../administrator.ts'
import { readFileArgument } from '../arguments.ts'
import { makePrivateDirectory, writeFileAtomically } from '../atomic-write.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { shellQuoted, shellWord } from '../../protocol/shell-quoted.ts'
import { writeLines } from '../lines.ts'
import { applySite } from './apply.ts'

interface DevFlags {
  readonly directory?: string
  readonly file?: string
}

const SAMPLE_SITE = `# Change this file and run: tallygate apply -f site.yaml
rateTables:
  - version: '1'
    effectiveFrom: 0
    items:
      - { name: LaserCut, version: '1.0', rate: 0.85 }
      - { name: LaserEngrave, version: '1.0', rate: 0.4 }
instances:
  - shortName: Workshop
    accountId: me
    lineItems:
      - activationId: FIRST-1000
        quantity: 1000
`

const READY_WITHIN_MS = 120_000
const STOP_WITHIN_MS = 10_000
const LOOK_EVERY_MS = 50

export function command(io: Io): Command {
  const dev = new Command('dev')
    .description(
      'Runs a cloud and an agent with a sample site on this machine, until Ctrl-C. Prints what to try. For development: both listen only on this machine, on any free ports.',
    )
    .option(
      '--directory <directory>',
      'keep databases, keys and logs here, and continue with them (default: temporary)',
    )
    .option(
      '-f, --file <file>',
      'site to apply at each start, also over changes by commands (see tallygate apply; default: site.yaml of the directory, at first a workshop with one line item)',
    )
    .action((flags: DevFlags) => run(flags, io))
  return examples(dev, ['tallygate dev', 'tallygate dev --directory ~/workshop -f site.yaml'])
}

async function run(flags: DevFlags, io: Io): Promise<void> {
  const signal = io.stop()
  const directory =
    flags.directory === undefined ? mkdtempSync(join(tmpdir(), 'tallygate-dev-')) : resolve(flags.directory)
  makePrivateDirectory(directory)
  const temporary = flags.directory === undefined ? [directory] : []
  const lastResort = (): void => {
    killRunning()
    for (const path of temporary) rmSync(path, { recursive: true, force: true, maxRetries: 10 })
  }
  // Also on an immediate exit, such as a second Ctrl-C.
  process.once('exit', lastResort)
  try {
    await using stack = new AsyncDisposableStack()
    const cloud = await startCloud(directory, stack, io)
    // Until here, they can be those of another process that uses the directory.
    temporary.push(join(directory, 'env'), join(directory, 'cloud.pid'))
    signal.throwIfAborted()
    const { agent, lines } = await start(flags, { directory, cloud }, stack, io)
    writeLines(io.stdout, [...lines, '', 'Stop with Ctrl-C.'])
    const stopped = new Promise<null>((done) => signal.addEventListener('abort', () => done(null), { once: true }))
    const ended = await Promise.race([stopped, agent.ended])
    if (ended !== null && !signal.aborted) {
      const log = flags.directory === undefined ? '' : ` See ${join(directory, 'agent.log')}.`
      throw new CodedError('DEMO_FAILED', `The agent ended with ${ended}.${log}`)
    }
  } catch (error) {
    if (!signal.aborted) throw error
  } finally {
    process.removeListener('exit', lastResort)
    lastResort()
  }
}

interface Started {
  readonly directory: string
  readonly cloud: Awaited<ReturnType<typeof startCloud>>
}

async function start(flags: DevFlags, { directory, cloud }: Started, stack: AsyncDisposableStack, io: Io) {
  const { url, adminKey, pid } = cloud
  const site = flags.file ?? join(directory, 'site.yaml')
  if (flags.file === undefined && !existsSync(site)) await writeFileAtomically(site, SAMPLE_SITE)
  await applySite({ file: site, url, adminKey, quiet: true }, io)
  using service = await administrator({ url, adminKey }, io)
  const instanceIds = (await service.instances()).map(({ id }) => String(id))
  const tokenFile = join(directory, 'enrollment-token')
  if (!existsSync(tokenFile)) {
    const body = { instanceIds, name: 'dev' }
    const call = { method: 'POST', path: '/edge/api/v1/enrollment-tokens', body } as const
    await writeFileAtomically(tokenFile, (await service.json(call, enrollmentTokenResponse)).token)
  }
  const { agent, socket, status } = await startAgent(directory, tokenFile, stack)
  const { instances } = await firstOffers(socket, io.stop())
  const items = instances.flatMap((each) => each.items.map((item) => ({ ...item, instanceId: each.instanceId })))
  const variables = {
    TALLYGATE_URL: url,
    TALLYGATE_ADMIN_KEY: adminKey,
    TALLYGATE_AGENT_SOCKET_PATH: socket,
    TALLYGATE_AGENT_STATE_DIRECTORY: join(directory, 'agent'),
    // Of the clients in sdk/.
    TALLYGATE_SOCKET: socket,
  }
  const text = Object.entries(variables).map(([name, value]) => `export ${name}=${shellQuoted(value)}\n`)
  const command = `${shellQuoted(process.execPath)} ${shellQuoted(COMMAND)}`
  // A clone is not on the path.
  text.push(`command -v tallygate >/dev/null || tallygate() { ${command} "$@"; }\n`)
  await writeFileAtomically(join(directory, 'env'), text.join(''))
  const lines = [
    `Cloud        ${url} (process ${pid})`,
    `Agent        ${socket} (process ${agent.pid})`,
    `Status page  ${status}`,
    `Files        ${directory}: ${flags.file === undefined ? 'site.yaml, ' : ''}logs, databases, keys`,
    '',
    'In another shell:',
    '',
    `  . ${shellWord(join(directory, 'env'))}`,
    ...requestLines(items[0], instanceIds.length > 1, socket),
    '',
    `Without the cloud: kill ${pid}. The agent continues.`,
  ]
  return { agent, lines }
}

interface OfferedItem {
  readonly instanceId: string
  readonly item: string
  readonly version?: string | undefined
}

/** @param offered undefined: the site has no item that can be requested */
function requestLines(offered: OfferedItem | undefined, isOneOfSeveral: boolean, socket: string): readonly string[] {
  const more = ['  tallygate usage list', '  tallygate console']
  if (offered === undefined) return [...more, '', 'No item can be requested: the site rates none, or has no line item.']
  const { instanceId, item, version } = offered
  const body = { requester: { type: 'user', value: 'anna' }, requestedItems: [{ item, version, count: 2.5 }] }
  const options = [
    `--item ${shellWord(item)}`,
    ...(version === undefined ? [] : [`--item-version ${shellWord(version)}`]),
    '--count 2.5 --requester user:anna',
    ...(isOneOfSeveral ? [`--instance ${instanceId}`] : []),
  ]
  return [
    `  tallygate access ${options.join(' ')}`,
    ...more,
    '',
    'The same request from an application:',
    '',
    `  curl --unix-socket ${shellWord(socket)} http://device/elastic/api/v1.1/instances/${instanceId}/access-request \\`,
    `    -H 'Content-Type: application/json' -d ${shellQuoted(JSON.stringify(body))}`,
  ]
}

const port = z.int().min(0).max(65_535)
const portsForm = z.object({ http: port, push: port })

function readPorts(file: string, io: Io): z.infer<typeof portsForm> {
  const parsed = portsForm.safeParse(parseJson(readFileArgument(io, file, 'CONFIG_UNREADABLE')))
  if (parsed.success) return parsed.data
  const remedy = 'Give an empty directory with --directory.'
  throw new CodedError('CONFIG_INVALID', `${file} is damaged.`, { details: { remedy } })
}

async function startCloud(directory: string, stack: AsyncDisposableStack, io: Io) {
  const portsFile = join(directory, 'ports.json')
  // Any free port at the first start, then the same: the agent remembers the address of its cloud.
  const ports = existsSync(portsFile) ? readPorts(portsFile, io) : { http: 0, push: 0 }
  const cloud = await startService({
    name: 'tallygate cloud',
    args: ['cloud'],
    env: {
      TALLYGATE_CLOUD_STORE_PATH: join(directory, 'cloud'),
      TALLYGATE_CLOUD_HTTP_PORT: String(ports.http),
      TALLYGATE_CLOUD_PUSH_PORT: String(ports.push),
    },
    logFile: join(directory, 'cloud.log'),
    readyWithinMs: READY_WITHIN_MS,
  })
  stack.defer(async () => void (await cloud.stop(STOP_WITHIN_MS)))
  const listening = z.object({ http: z.string(), push: z.string(), adminKeyFile: z.string() }).parse(cloud.listening)
  const portOf = (url: string): number => Number(new URL(url).port)
  const chosen = { http: portOf(listening.http), push: portOf(listening.push) }
  await writeFileAtomically(portsFile, JSON.stringify(chosen))
  await writeFileAtomically(join(directory, 'cloud.pid'), `${cloud.pid}\n`)
  void cloud.ended.then((code) => {
    if (!io.stop().aborted && !stack.disposed)
      writeLines(io.stdout, [`The cloud has ended (${code}). The agent continues without it.`])
  })
  return { url: listening.http, adminKey: listening.adminKeyFile, pid: cloud.pid }
}

async function startAgent(directory: string, tokenFile: string, stack: AsyncDisposableStack) {
  const socket = join(directory, 'agent.sock')
  const agent = await startService({
    name: 'tallygate agent',
    args: ['agent'],
    env: {
      TALLYGATE_AGENT_SOCKET_PATH: socket,
      TALLYGATE_AGENT_STATE_DIRECTORY: join(directory, 'agent'),
      TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: tokenFile,
      TALLYGATE_AGENT_STATUS_PORT: '0',
      // A real device may take minutes; here, results should be visible at once.
      TALLYGATE_AGENT_SYNC_INTERVAL: '1s',
      TALLYGATE_AGENT_SYNC_BACKOFF_MAX: '1s',
    },
    logFile: join(directory, 'agent.log'),
    readyWithinMs: READY_WITHIN_MS,
  })
  stack.defer(async () => void (await agent.stop(STOP_WITHIN_MS)))
  return { agent, socket, status: z.object({ status: z.string() }).parse(agent.listening).status }
}

/** Once the device can grant requests. */
async function firstOffers(socket: string, signal: AbortSignal): Promise<OffersWire> {
  using client = new HttpClient({ address: `unix:${socket}`, unreachable: 'AGENT_UNREACHABLE' })
  for (;;) {
    const { policies, grant } = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
    if (grant !== null && policies.some(({ applied }) => applied > 0))
      return await client.json({ method: 'GET', path: AGENT_OFFERS_PATH }, offers)
    await sleep(LOOK_EVERY_MS, undefined, { signal })
  }
}
