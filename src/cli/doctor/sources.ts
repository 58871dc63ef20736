/**
 * Which settings the checks go by: where the agent that is meant runs, those that its process was started with; else those that
 * an agent would take which is started here. Flags are taken from processes of this user alone: what somebody else
 * starts under the name of an agent must not lead this command to files of its choice.
 */
import { readFileSync, readlinkSync, statSync } from 'node:fs'
import { resolve } from 'node:path'
import { agentOptions, type AgentSettings } from '../../agent/settings.ts'
import { loadSettings } from '../../settings/load.ts'
import { namedOptions } from '../../settings/option.ts'
import type { Io } from '../io.ts'
import { settingsFile } from '../service-settings.ts'
import type { DoctorFacts } from './facts.ts'

export interface SettingsSources {
  readonly file: string | null
  readonly env: Io['env']
  readonly flags: Readonly<Record<string, string>>
  /** Whose they are; null: of this command. */
  readonly process: number | null
}

/** @param socket of the agent that is meant; undefined: the one of the settings */
export function sourcesOf(io: Io, agents: DoctorFacts['agents'], socket: string | undefined): SettingsSources {
  const own = { file: settingsFile(agentOptions, io), env: io.env, flags: {}, process: null }
  const started = agents.map(({ pid }) => startedWith(io, pid))
  if (socket !== undefined) {
    const meant = started.filter((each) => socketOf(io, each) === resolve(socket))
    if (meant.length === 1 && meant[0] !== undefined) return meant[0]
  }
  // Who says it in the environment means it.
  if (Object.keys(io.env).some((name) => name.startsWith(PREFIX))) return own
  const [only, ...others] = started
  return only === undefined || others.length > 0 ? own : only
}

const PREFIX = `${agentOptions.envPrefix}_`

function startedWith(io: Io, pid: number): SettingsSources {
  const given = partsOf(`/proc/${pid}/environ`).filter((each) => each.startsWith(PREFIX))
  const pairs = given.map((each) => [each.slice(0, each.indexOf('=')), each.slice(each.indexOf('=') + 1)])
  const env = { ...io.env, ...(Object.fromEntries(pairs) as Record<string, string>) }
  const { config = null, ...flags } = isOwn(pid) ? flagsOf(pid) : {}
  return { file: config ?? settingsFile(agentOptions, { env }), env, flags, process: pid }
}

/** The flags of the command line `tallygate agent ...` of a process; paths from where it runs. */
function flagsOf(pid: number): Readonly<Record<string, string>> {
  const known = new Map(namedOptions(agentOptions).map(({ flag, option }) => [flag, option.takes.includes('path')]))
  known.set('config', true)
  let folder: string
  try {
    folder = readlinkSync(`/proc/${pid}/cwd`)
  } catch {
    return {}
  }
  const flags: Record<string, string> = {}
  const words = partsOf(`/proc/${pid}/cmdline`)
  for (let at = 0; at < words.length; at += 1) {
    const [, flag = '', inOne] = /^--([a-z-]+)(?:=(.*))?$/s.exec(words[at] ?? '') ?? []
    const isPath = known.get(flag)
    if (isPath === undefined) continue
    const value = inOne ?? words[(at += 1)] ?? ''
    flags[flag] = isPath && value !== '' ? resolve(folder, value) : value
  }
  return flags
}

function socketOf(io: Io, { file, env, flags }: SettingsSources): string | null {
  let settings: AgentSettings
  try {
    settings = loadSettings(agentOptions, { file, env, flags, readText: io.readText })
  } catch {
    return null
  }
  return resolve(settings.socket.path)
}

function isOwn(pid: number): boolean {
  try {
    return statSync(`/proc/${pid}`).uid === process.getuid?.()
  } catch {
    return false
  }
}

function partsOf(path: string): readonly string[] {
  try {
    return readFileSync(path, 'utf8').split('\0')
  } catch {
    return []
  }
}
