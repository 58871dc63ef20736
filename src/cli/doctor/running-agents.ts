/** Agents on this machine. Only trusted processes name files: this command may run as root, and repairs them. */
import { readdirSync, readlinkSync, statSync } from 'node:fs'
import { userOf } from '../../agent/platform/system/names.ts'
import { orNull } from '../../platform/or-null.ts'
import { fileText } from '../../platform/file-text.ts'

export interface RunningAgent {
  readonly pid: number
  readonly command: string
  /** User name, or number if the user has no name. */
  readonly user: string
  readonly started: StartedWith | 'NOT_READABLE' | 'NOT_TRUSTED'
}

export interface StartedWith {
  readonly environment: readonly string[]
  readonly words: readonly string[]
  readonly folder: string
}

/** Matches from the root of all groups: users can create groups only below their own. */
const UNIT = /^(?:0:|\d+:name=systemd):\/system\.slice\/tallygate-agent(?:@[^/]*)?\.service$/m

export function runningAgents(): readonly RunningAgent[] {
  const names = orNull(() => readdirSync('/proc')) ?? []
  const pids = names.filter((name) => /^\d+$/.test(name)).map(Number)
  return pids.flatMap((pid) => {
    const words = partsOf(`/proc/${pid}/cmdline`) ?? []
    const at = words.findIndex((word) => /(^|\/)tallygate(\.js)?$/.test(word))
    if (at < 0 || at > 8 || words[at + 1] !== 'agent') return []
    const command = words
      .slice(at, at + 4)
      .join(' ')
      .trimEnd()
    const uid = orNull(() => statSync(`/proc/${pid}`).uid)
    return uid === null ? [] : [{ pid, command, user: userOf(uid) ?? String(uid), started: startOf(pid, uid, words) }]
  })
}

function startOf(pid: number, uid: number, words: readonly string[]): RunningAgent['started'] {
  const isOwn = uid === process.getuid?.() || uid === 0
  if (!isOwn && !UNIT.test(fileText(`/proc/${pid}/cgroup`) ?? '')) return 'NOT_TRUSTED'
  const environment = partsOf(`/proc/${pid}/environ`)
  const folder = orNull(() => readlinkSync(`/proc/${pid}/cwd`))
  return environment === null || folder === null ? 'NOT_READABLE' : { environment, words, folder }
}

function partsOf(path: string): readonly string[] | null {
  return fileText(path)?.split('\0') ?? null
}
