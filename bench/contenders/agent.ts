/** The shipped agent as a separate process, on an enrolled offline device. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, rmSync } from 'node:fs'
import { type IncomingMessage, request } from 'node:http'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { DENIAL_MARK, DENIED_BODIES, GRANT_MARK, REQUEST_BODIES, REQUEST_PATH, SERIAL } from '../workload.ts'
import { JOURNAL_FILE, prepareAgentState, type StateContents } from './agent-state.ts'
import type { Contender } from './contender.ts'
import { countEntries, meanEntryBytes } from './ledger-file.ts'
import type { Place } from './place.ts'

const START_MS_MAX = 20_000
/** Program and first arguments of the command `tallygate`. */
export type Command = readonly [program: string, ...args: string[]]

const COMMAND: Command = [process.execPath, fileURLToPath(new URL('../../bin/tallygate.js', import.meta.url))]

/** @param command of an installation; omitted: of this clone */
export function agentsOf(command: Command = COMMAND) {
  return {
    agent: agentOf({ name: 'agent', command }),
    /** Responses within a reservation follow a write to a log on tmpfs, which a power cut loses. */
    writeBehindAgent: agentOf({ name: 'agent (write-behind)', durability: 'write-behind', command }),
    /** Refuses every request by a rule: a full decision that charges nothing. */
    denyingAgent: agentOf({ name: 'agent (denials)', bodies: DENIED_BODIES, grantMark: DENIAL_MARK, command }),
  }
}

export const { agent, writeBehindAgent, denyingAgent } = agentsOf()

export interface AgentPlan {
  readonly name: string
  readonly durability?: 'durable' | 'write-behind'
  readonly bodies?: readonly string[]
  readonly grantMark?: string
  readonly contents?: StateContents
  readonly command?: Command
}

export function agentOf({
  name,
  durability = 'durable',
  bodies = REQUEST_BODIES,
  grantMark = GRANT_MARK,
  contents,
  command = COMMAND,
}: AgentPlan): Contender {
  return {
    name,
    async start({ directory, socketPath, volatileDirectory }) {
      const state = join(directory, 'agent')
      await prepareAgentState(state, contents)
      const places = [
        '--state-directory',
        state,
        '--socket-path',
        socketPath,
        '--write-behind-directory',
        volatileDirectory,
      ]
      const args: Command = [...command, 'agent', ...places, '--durability', durability, '--log-level', 'error']
      const { child, exit } = await startAgent(args, socketPath)
      return {
        target: { protocol: 'http', socketPath, paths: [REQUEST_PATH], bodies, serial: SERIAL, grantMark },
        pid: child.pid ?? 0,
        async killAndCount() {
          // Denials are answered before they are recorded: a clean stop records the last ones.
          child.kill(grantMark === DENIAL_MARK ? 'SIGTERM' : 'SIGKILL')
          await exit
          // The next start moves pending entries to the ledger.
          if (durability === 'write-behind') await startAndStop(args, socketPath)
          return countEntries(join(state, JOURNAL_FILE))
        },
      }
    },
  }
}

async function startAgent([program, ...args]: Command, socketPath: string) {
  const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'inherit'] })
  const exit = once(child, 'exit')
  const giveUpAt = performance.now() + START_MS_MAX
  const isThere = (): boolean => existsSync(socketPath) && child.exitCode === null
  while (!isThere()) {
    if (child.exitCode !== null || performance.now() > giveUpAt) throw new Error('the agent does not start')
    await delay(20)
  }
  return { child, exit }
}

/** Starts an agent on a killed one's state and stops it cleanly. */
async function startAndStop(args: Command, socketPath: string): Promise<void> {
  rmSync(socketPath, { force: true })
  const { child, exit } = await startAgent(args, socketPath)
  child.kill('SIGTERM')
  await exit
}

/** Per request, bytes. */
export interface Sizes {
  readonly entryBytes: number
  readonly answerBytes: number
}

export async function measureSizes(place: Place): Promise<Sizes> {
  const running = await agent.start(place)
  let answerBytes = 0
  try {
    for (const body of REQUEST_BODIES) answerBytes += Buffer.byteLength(await ask(place.socketPath, body))
  } finally {
    await running.killAndCount()
  }
  return {
    entryBytes: meanEntryBytes(join(place.directory, 'agent', JOURNAL_FILE)),
    answerBytes: Math.round(answerBytes / REQUEST_BODIES.length),
  }
}

async function ask(socketPath: string, body: string): Promise<string> {
  const headers = { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) }
  const asked = request({ socketPath, path: REQUEST_PATH, method: 'POST', headers })
  asked.end(body)
  const [response] = (await once(asked, 'response')) as [IncomingMessage]
  const answer = await text(response)
  if (!answer.includes(GRANT_MARK)) throw new Error(`the agent does not grant: ${answer}`)
  return answer
}
