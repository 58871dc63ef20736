/** The agent to check: the one that the user names; else the only trusted running one; else this machine's settings. */
import { resolve } from 'node:path'
import { agentOptions, type AgentSettings } from '../../agent/settings.ts'
import { orNull } from '../../platform/or-null.ts'
import { loadSettings } from '../../settings/load.ts'
import { namedOptions } from '../../settings/option.ts'
import type { Io } from '../io.ts'
import { settingsFile } from '../service-settings.ts'
import type { RunningAgent, StartedWith } from './running-agents.ts'

export interface SettingsSources {
  readonly file: string | null
  readonly env: Io['env']
  readonly flags: Readonly<Record<string, string>>
}

/** `SOCKET`: listens on the socket that the user named. `ENVIRONMENT`: of this command, or of the agent that it selects. Others: trusted agents that run. */
export type ChoiceWhy = 'SOCKET' | 'ENVIRONMENT' | 'ONLY' | 'NONE' | 'SEVERAL'

export interface Choice {
  readonly why: ChoiceWhy
  readonly isNamed: boolean
  /** Process whose settings are used; null: this command's or this machine's. */
  readonly process: { readonly pid: number; readonly user: string } | null
  readonly others: readonly OtherAgent[]
}

export interface OtherAgent {
  readonly pid: number
  readonly user: string
  /** Socket path, or why it is unknown. */
  readonly socket: { readonly path: string } | 'NOT_READABLE' | 'NOT_TRUSTED' | 'SETTINGS_WRONG'
}

type World = Pick<Io, 'env' | 'readText'>

export function choose(
  io: World,
  agents: readonly RunningAgent[],
  socket: string | undefined,
): { readonly sources: SettingsSources; readonly choice: Choice } {
  const known = agents.map((agent) => ({
    agent,
    sources: typeof agent.started === 'string' ? null : startedWith(io, agent.started),
  }))
  const othersThan = (pid: number | null): readonly OtherAgent[] =>
    known
      .filter(({ agent }) => agent.pid !== pid)
      .map(({ agent: { pid, user, started }, sources }) => {
        if (typeof started === 'string') return { pid, user, socket: started }
        const path = sources === null ? null : socketOf(io, sources)
        return { pid, user, socket: path === null ? 'SETTINGS_WRONG' : { path } }
      })
  const machine = (why: ChoiceWhy) => ({
    sources: sourcesOfMachine(io),
    choice: { why, isNamed: socket !== undefined, process: null, others: othersThan(null) },
  })
  const ofProcess = (why: ChoiceWhy, { pid, user }: RunningAgent, sources: SettingsSources) => ({
    sources,
    choice: { why, isNamed: socket !== undefined, process: { pid, user }, others: othersThan(pid) },
  })
  const believed = known.flatMap(({ agent, sources }) => (sources === null ? [] : [{ agent, sources }]))
  if (socket !== undefined) {
    const meant = believed.filter(({ sources }) => socketOf(io, sources) === resolve(socket))
    if (meant.length === 1 && meant[0] !== undefined) return ofProcess('SOCKET', meant[0].agent, meant[0].sources)
  }
  // An explicit environment takes precedence over running agents. The one that it selects may have other settings as well.
  if (Object.keys(io.env).some((name) => name.startsWith(PREFIX))) {
    const place = placeOf(io, sourcesOfMachine(io))
    const meant = believed.find(({ sources }) => place !== null && placeOf(io, sources) === place)
    return meant === undefined ? machine('ENVIRONMENT') : ofProcess('ENVIRONMENT', meant.agent, meant.sources)
  }
  const [only, ...others] = believed
  if (only === undefined) return machine('NONE')
  return others.length > 0 ? machine('SEVERAL') : ofProcess('ONLY', only.agent, only.sources)
}

/** The settings of this machine and of this command, which no process chooses. */
export function sourcesOfMachine({ env }: Pick<Io, 'env'>): SettingsSources {
  return { file: settingsFile(agentOptions, { env }), env, flags: {} }
}

const PREFIX = `${agentOptions.envPrefix}_`

const READ_BY_AGENT = new RegExp(`^(${PREFIX}|(https?|no)_proxy=?$)`, 'i')

function startedWith(io: World, { environment, words, folder }: StartedWith): SettingsSources {
  const given = environment.filter((each) => READ_BY_AGENT.test(each.slice(0, each.indexOf('=') + 1)))
  const pairs = given.map((each) => [each.slice(0, each.indexOf('=')), each.slice(each.indexOf('=') + 1)])
  const own = Object.entries(io.env).filter(([name]) => !READ_BY_AGENT.test(name))
  const env = Object.fromEntries([...own, ...pairs]) as Io['env']
  const { config = null, ...flags } = flagsOf(words, folder)
  return { file: config ?? settingsFile(agentOptions, { env }), env, flags }
}

/** Flags of a `tallygate agent ...` command line; paths are resolved against its working directory. */
function flagsOf(words: readonly string[], folder: string): Readonly<Record<string, string>> {
  const known = new Map(namedOptions(agentOptions).map(({ flag, option }) => [flag, option.takes.includes('path')]))
  known.set('config', true)
  const flags: Record<string, string> = {}
  for (let at = 0; at < words.length; at += 1) {
    const [, flag = '', inOne] = /^--([a-z-]+)(?:=(.*))?$/s.exec(words[at] ?? '') ?? []
    const isPath = known.get(flag)
    if (isPath === undefined) continue
    const value = inOne ?? words[(at += 1)] ?? ''
    flags[flag] = isPath && value !== '' ? resolve(folder, value) : value
  }
  return flags
}

function socketOf(io: World, sources: SettingsSources): string | null {
  const settings = settingsOf(io, sources)
  return settings === null ? null : resolve(settings.socket.path)
}

/** Socket and state directory: no two agents have the same ones. */
function placeOf(io: World, sources: SettingsSources): string | null {
  const settings = settingsOf(io, sources)
  return settings === null
    ? null
    : [settings.socket.path, settings.state.directory].map((path) => resolve(path)).join('\n')
}

/** Null: they are invalid. */
function settingsOf({ readText }: World, { file, env, flags }: SettingsSources): AgentSettings | null {
  return orNull(() => loadSettings(agentOptions, { file, env, flags, readText }))
}
