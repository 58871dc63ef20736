/**
 * The agents that run on this machine, by what the kernel says of their processes. What a process was started with is taken only
 * from one that this user may believe: its own, one of root, or one that the service manager has put in the control group of the
 * unit. Somebody else's could lead this command, which may run as root and mends files, to files of his choice.
 */
import { readFileSync, readdirSync, readlinkSync, statSync } from 'node:fs'
import { userOf } from '../../agent/adapters/system/names.ts'

export interface RunningAgent {
  readonly pid: number
  /** The first words of its command line. */
  readonly command: string
  /** By name, or by number where it has none. */
  readonly user: string
  readonly started: StartedWith | 'NOT_READABLE' | 'NOT_TRUSTED'
}

export interface StartedWith {
  /** `NAME=value` each. */
  readonly environment: readonly string[]
  readonly words: readonly string[]
  readonly folder: string
}

/** As the kernel writes it, from the root of all groups on: a user who may make groups makes them below his own. */
const UNIT = /^(?:0:|\d+:name=systemd):\/system\.slice\/tallygate-agent(?:@[^/]*)?\.service$/m

export function runningAgents(): readonly RunningAgent[] {
  return pids().flatMap((pid) => {
    const words = partsOf(`/proc/${pid}/cmdline`) ?? []
    const at = words.findIndex((word) => /(^|\/)tallygate(\.js)?$/.test(word))
    if (at < 0 || at > 8 || words[at + 1] !== 'agent') return []
    const command = words
      .slice(at, at + 4)
      .join(' ')
      .trimEnd()
    const uid = ownerOf(pid)
    return uid === null ? [] : [{ pid, command, user: userOf(uid) ?? String(uid), started: startOf(pid, uid, words) }]
  })
}

function startOf(pid: number, uid: number, words: readonly string[]): RunningAgent['started'] {
  const isOwn = uid === process.getuid?.() || uid === 0
  if (!isOwn && !UNIT.test(textOf(`/proc/${pid}/cgroup`) ?? '')) return 'NOT_TRUSTED'
  const environment = partsOf(`/proc/${pid}/environ`)
  const folder = folderOf(pid)
  return environment === null || folder === null ? 'NOT_READABLE' : { environment, words, folder }
}

function pids(): readonly number[] {
  try {
    return readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .map(Number)
  } catch {
    return []
  }
}

/** Null: it has ended meanwhile. */
function ownerOf(pid: number): number | null {
  try {
    return statSync(`/proc/${pid}`).uid
  } catch {
    return null
  }
}

function folderOf(pid: number): string | null {
  try {
    return readlinkSync(`/proc/${pid}/cwd`)
  } catch {
    return null
  }
}

function partsOf(path: string): readonly string[] | null {
  return textOf(path)?.split('\0') ?? null
}

function textOf(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return null
  }
}
