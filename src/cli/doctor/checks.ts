/** What only the network can tell is a warning: an offline device that can still decide is not broken. */
import { offlineMs } from '../../agent/diagnostics/health-status.ts'
import { ENGINE, outdatedSide } from '../../core/engine.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import { isLineAccount } from '../../core/accounts/account.ts'
import { available } from '../../core/accounts/grant.ts'
import { counted, roughly, sizeInWords } from '../../core/accounts/in-words.ts'
import { ERRORS, isErrorCode, messageOf, remedyAfter } from '../../protocol/errors.ts'
import { type AgentStatus, CLOCK_OFF_MS, clockErrorMs } from '../../protocol/local/status.ts'
import { isLoopback } from '../../platform/is-loopback.ts'
import { Secret } from '../../settings/option.ts'
import { instanceInWords } from '../local-agent.ts'
import {
  type Observations,
  type EndpointObservation,
  type FileObservation,
  type Problem,
  isProblem,
  isStarting,
} from './observations.ts'
import type { Choice, ChoiceWhy, OtherAgent } from './sources.ts'

export type Level = 'ok' | 'warn' | 'fail' | 'skip'

export interface Finding {
  readonly level: Level
  readonly evidence: string
  readonly remedy: string
}

export interface Examined extends Finding {
  readonly name: string
}

export const RESULT_EXIT = { ok: 0, warn: 1, fail: 2 } as const

export interface Examination {
  readonly result: keyof typeof RESULT_EXIT
  /** Entries that the cloud does not have. Null: unknown; the log of the write-behind mode may contain more. */
  readonly undelivered: number | null
  readonly checks: readonly Examined[]
}

/** Never throws: a failed check is reported as a finding. */
export function examine(observations: Observations): Examination {
  const checks = Object.entries(CHECKS).map(([name, check]): Examined => {
    try {
      return { name, ...check(observations) }
    } catch (error) {
      const remedy = 'Send a support bundle (tallygate support-bundle): this is a bug in tallygate.'
      return { name, ...warn(`the check failed: ${messageOf(error)}`, remedy) }
    }
  })
  const has = (level: Level): boolean => checks.some((each) => each.level === level)
  const result = has('fail') ? 'fail' : has('warn') ? 'warn' : 'ok'
  return { result, undelivered: undeliveredOf(observations), checks }
}

function undeliveredOf({ agent, inspected: { state } }: Observations): number | null {
  if (!isProblem(agent)) return agent.backlog
  const recorded = state?.['backlog'] ?? null
  return recorded === null || Number(state?.['open_reservations']) > 0 ? null : Number(recorded)
}

const ok = (evidence: string): Finding => ({ level: 'ok', evidence, remedy: '' })
const skip = (evidence: string): Finding => ({ level: 'skip', evidence, remedy: '' })
const warn = (evidence: string, remedy: string): Finding => ({ level: 'warn', evidence, remedy })
const fail = (evidence: string, remedy: string): Finding => ({ level: 'fail', evidence, remedy })

const MIB = 1024 * 1024
const DAY_MS = 86_400_000

/** Older versions have bugs in the write-ahead log that can damage databases. */
const OLDEST_SQLITE = [3, 51, 3]

const MEMORY_MIN = 128 * MIB

/** Open files and connections of the agent besides those of its callers, with some to spare. */
const OWN_FILES = 64

/** Automatic renewal should have happened before this. */
const CERTIFICATE_LEFT_MS = 14 * DAY_MS

/** File systems that lose data at a restart of the machine or container. */
const VOLATILE = new Set(['tmpfs', 'ramfs', 'overlayfs', 'squashfs', 'zram'])

/** Network file systems: their locks and flushes are unreliable. */
const REMOTE = new Set(['nfs', 'cifs', 'smb2', '9p', 'fuse'])

/** The catalogue's remedy is for the maker of the token, which here is the device itself. */
function signInRemedy(code: string | null): string {
  if (code === 'TOKEN_NOT_IN_TIME') return ERRORS.CLOCK_WRONG.remedy
  if (code === 'TOKEN_INVALID') {
    return 'The cloud does not know this key. Put the enrolled key back (see key-fits), or enroll the device again.'
  }
  return remedyOf(code) ?? 'Contact the operator of the cloud; the device may have to be enrolled again.'
}

function remedyOf(code: string | null): string | undefined {
  return code !== null && isErrorCode(code) ? ERRORS[code].remedy : undefined
}

const WHY: Readonly<Record<ChoiceWhy, (choice: Choice) => string>> = {
  SOCKET: ({ process }) => `settings of process ${processName(process)}, which listens there`,
  ENVIRONMENT: ({ process }) => {
    const environment = 'environment of this command (TALLYGATE_AGENT_...)'
    return process === null
      ? environment
      : `settings of process ${processName(process)}, selected by the ${environment}`
  },
  ONLY: ({ process, others }) => {
    const believed = others.length === 0 ? '' : ' whose settings this user can trust'
    return `settings of process ${processName(process)}, the only running agent${believed}`
  },
  NONE: ({ others }) => {
    const believed = others.length === 0 ? 'runs' : 'runs whose settings this user can trust'
    return `settings of this machine, because no agent ${believed}`
  },
  SEVERAL: () => 'settings of this machine, because several agents run',
}

function processName(process: Choice['process']): string {
  return process === null ? '' : `${process.pid} of ${process.user}`
}

function settingsIn({ why, process }: Choice): string {
  if (process !== null) return `the settings of process ${processName(process)}`
  return why === 'ENVIRONMENT' ? 'the settings in the environment of this command' : 'the settings of this machine'
}

const UNKNOWN_SOCKET = {
  NOT_READABLE: 'runs, but this user cannot see how it was started',
  NOT_TRUSTED: 'runs, but belongs neither to this user nor to the service',
  SETTINGS_WRONG: 'runs, with invalid settings',
}

function describeOther({ pid, user, socket }: OtherAgent): string {
  return `process ${pid} of ${user} ${typeof socket === 'string' ? UNKNOWN_SOCKET[socket] : `listens on ${socket.path}`}`
}

const LEDGER_IN_CHECK = 'the agent is checking the ledger'

const DISK_REMEDY =
  'Keep the files of the state directory. Look for faults of the disk in the kernel log (dmesg), repair it, then restart the agent.'

function noAnswerReason(agent: Problem): string {
  return isStarting(agent) ? 'the agent starts' : 'no agent responds'
}

/** Why doctor did not read the ledger. Null: the ledger was read, or there is none. */
function unreadReason({ agent, database: { kind, readable }, inspected: { problem } }: Observations): string | null {
  if (isStarting(agent)) return LEDGER_IN_CHECK
  const isUnread = kind === 'hidden' || (kind === 'file' && (!readable || problem !== null))
  return isUnread ? 'the ledger cannot be read' : null
}

/** Reason that neither the agent nor the ledger shows the state of the device. Null: one of them does. */
function unknownReason(observations: Observations): string | null {
  const unread = unreadReason(observations)
  if (unread === null || !isProblem(observations.agent)) return null
  return isStarting(observations.agent) ? unread : `no agent responds, and ${unread}`
}

const NOT_ENROLLED = 'the device is not enrolled'

function deviceIdOf({ agent, inspected: { identity } }: Observations): string | null {
  return isProblem(agent) ? (identity?.deviceId ?? null) : agent.deviceId
}

type Place = 'cloud' | 'broker'

/** A check of the cloud or the broker, if doctor has looked at it. */
function atPlace(place: Place, check: (endpoint: EndpointObservation, observations: Observations) => Finding) {
  return (observations: Observations): Finding => {
    if (place === 'broker' && !observations.settings.push.enabled) return skip('push.enabled is false')
    const endpoint = observations[place]
    return endpoint === null ? skip(notLookedReason(observations, place)) : check(endpoint, observations)
  }
}

function notLookedReason(observations: Observations, place: Place): string {
  const { identity } = observations.inspected
  if (identity === null) return unreadReason(observations) ?? `${NOT_ENROLLED}, so it has no cloud address yet`
  if (place === 'broker' && identity.pushUrl === null) return 'the cloud has no broker'
  return 'doctor makes no network requests (--no-network)'
}

/** By name: programs rely on the names, do not change them. */
export const CHECKS: Readonly<Record<string, (observations: Observations) => Finding>> = {
  'selected-agent': ({ configuration: { choice }, socket, agent }) => {
    const { isNamed, why, others } = choice
    const place = isNamed ? `${socket.path}, named by --socket` : socket.path
    const evidence = [`${place}: ${WHY[why](choice)}`, ...others.map(describeOther)].join('; ')
    const settings = 'set TALLYGATE_AGENT_CONFIG and TALLYGATE_AGENT_STATE_DIRECTORY'
    // Other agents are no fault of this one, so their check passes, with advice.
    if (why === 'SEVERAL') {
      return { ...ok(evidence), remedy: `Select one agent: ${isNamed ? '' : 'give its --socket, or '}${settings}.` }
    }
    const [only] = others
    // An agent that responds on the socket of this machine's settings is the right one.
    return why === 'NONE' && only !== undefined && isProblem(agent)
      ? { ...ok(evidence), remedy: `To check that agent, run doctor as ${only.user}, or ${settings}.` }
      : ok(evidence)
  },
  configuration: ({ configuration: { file, choice, otherSocket, problem }, settings, socket }) => {
    if (problem !== null) {
      const { code, message, remedy } = problem
      return fail(`${code}: ${message}`, remedy ?? remedyAfter(code))
    }
    const named = file === null ? 'no settings file' : `${file} is valid`
    const { process } = choice
    const whose = process === null ? 'the environment' : `the environment and flags of process ${process.pid}`
    const where = `${named}; with ${whose}, the state directory is ${settings.state.directory}`
    const remedy =
      'Give doctor the settings of the right agent: TALLYGATE_AGENT_CONFIG, TALLYGATE_AGENT_STATE_DIRECTORY.'
    if (otherSocket !== null) {
      const says = `${where} and the socket is ${otherSocket}; ${socket.path} may belong to another agent with other files`
      return warn(says, remedy)
    }
    // With the same state directory, it would have been chosen.
    const listener = choice.others.find((each) => typeof each.socket !== 'string' && each.socket.path === socket.path)
    return choice.why === 'ENVIRONMENT' && listener !== undefined
      ? warn(`${where}; process ${listener.pid}, which listens on ${socket.path}, has another one`, remedy)
      : ok(where)
  },
  'configuration-files': ({ configuration: { file, files } }) => {
    // Other users may read the settings, but no secrets.
    const open = files.filter(
      ({ kind, mode, path }) => kind === 'file' && (mode & (path === file ? 0o002 : 0o007)) !== 0,
    )
    if (open.length > 0)
      return fail(open.map(describeFile).join(', '), 'Run chmod o-rwx on these files, or run doctor --fix.')
    return ok(files.length === 0 ? 'none' : files.map(describeFile).join(', '))
  },
  node: ({ node: { version, oldestMajor } }) =>
    Number(version.split('.')[0]) >= oldestMajor
      ? ok(`Node ${version}`)
      : fail(`Node ${version} is older than ${oldestMajor}`, 'Use the Node.js runtime of the package.'),
  sqlite: ({ sqlite }) => {
    const parts = sqlite.split('.').map(Number)
    const difference = OLDEST_SQLITE.map((part, index) => (parts[index] ?? 0) - part).find((each) => each !== 0) ?? 0
    return difference >= 0
      ? ok(`SQLite ${sqlite}`)
      : fail(
          `SQLite ${sqlite} is older than ${OLDEST_SQLITE.join('.')}`,
          'Reinstall the package with its dependencies.',
        )
  },
  agent: ({ agent, agents, socket, configuration: { choice, otherSocket } }) => {
    if (!isProblem(agent)) return ok('the agent responds on its socket')
    if (agent.code === 'CALLER_NOT_ALLOWED')
      return warn(agent.message, 'Run doctor as root, or add this user to callers.observe.')
    if (agent.code === 'AGENT_STARTING') return warn(agent.message, ERRORS.AGENT_STARTING.remedy)
    if (agent.code === 'SOCKET_NOT_PERMITTED') return warn(agent.message, 'Run doctor as root.')
    if (otherSocket !== null && choice.process !== null)
      return fail(
        `${agent.message} Process ${choice.process.pid} listens on ${otherSocket}.`,
        'Correct --socket, or start the agent of this socket.',
      )
    const isElsewhere = ({ pid }: { readonly pid: number }): boolean =>
      choice.others.some(
        (each) => each.pid === pid && typeof each.socket !== 'string' && each.socket.path !== socket.path,
      )
    const silent = agents.filter((each) => !isElsewhere(each)).map(({ pid }) => pid)
    if (silent.length === 0)
      return fail(
        `${agent.message} No agent runs.`,
        'Start it (with systemd: systemctl restart tallygate-agent). Its output shows why it stopped (with systemd: tallygate logs).',
      )
    return fail(
      `${agent.message} Process ${silent.join(', ')} runs but does not respond.`,
      // The socket unit creates the file of the socket.
      'If it has just started, run doctor again in a minute. Otherwise restart it (with systemd: systemctl restart tallygate-agent.socket tallygate-agent).',
    )
  },
  'agent-version': ({ agent, version }) => {
    if (isProblem(agent)) return skip(noAnswerReason(agent))
    return agent.version === version
      ? ok(`agent and command have version ${version}`)
      : warn(
          `the agent has version ${agent.version}, this command ${version}`,
          'Restart the agent to run the installed version.',
        )
  },
  socket: ({ socket, agent, isListened }) => {
    if (socket.kind === 'none') {
      return isProblem(agent)
        ? skip('no agent runs, and there is no socket')
        : fail(`${socket.path} is missing`, 'Restart the agent.')
    }
    if (socket.kind === 'hidden') return warn(describeFile(socket), 'Run doctor as root.')
    if (socket.kind !== 'socket')
      return fail(`${socket.path} is a ${socket.kind}`, 'Move this file away, or set another socket.path.')
    if (isProblem(agent) && isListened === false) {
      return warn(
        `${socket.path} is left over: no process listens`,
        'Run doctor --fix to remove it, or start the agent, which also removes it.',
      )
    }
    return ok(describeFile(socket))
  },
  'socket-permissions': ({ socket, settings }) => {
    if (socket.kind !== 'socket') return skip('there is no socket')
    const wanted = Number.parseInt(settings.socket.mode, 8)
    if (socket.mode === wanted) return ok(describeFile(socket))
    const required = `socket.mode is ${settings.socket.mode}`
    return warn(
      `${describeFile(socket)}, but ${required}; users who can connect can spend tokens`,
      'Restart the agent, or run doctor --fix.',
    )
  },
  'state-directory': ({ directory }) => {
    if (directory.kind === 'none')
      return fail(`${directory.path} does not exist`, 'Start the agent: it creates the directory.')
    if (directory.kind === 'hidden') return warn(`this user cannot read ${directory.path}`, 'Run doctor as root.')
    if (directory.kind !== 'directory')
      return fail(`${directory.path} is a ${directory.kind}`, 'Set state.directory to a directory.')
    if ((directory.mode & 0o022) !== 0) {
      return fail(
        describeFile(directory),
        'Run chmod 700 on it, or run doctor --fix: users who can write there can spend tokens.',
      )
    }
    if ((directory.mode & 0o007) !== 0)
      return warn(describeFile(directory), 'Run chmod 700 on it, or run doctor --fix.')
    return ok(describeFile(directory))
  },
  owners: ({ directory, database, key, log, diskReserve }) => {
    if (directory.kind !== 'directory') return skip('there is no state directory')
    const others = [database, log, diskReserve, ...(key.path.startsWith(`${directory.path}/`) ? [key] : [])].filter(
      ({ kind, uid }) => kind === 'file' && uid !== directory.uid,
    )
    if (others.length === 0) return ok(`all files belong to uid ${directory.uid}`)
    const whom = others.map(({ path, uid }) => `${path} belongs to uid ${uid}`).join(', ')
    return fail(
      `${whom}; the directory belongs to uid ${directory.uid}`,
      // Not the target of a link that the agent's user has put there.
      `Run chown -h ${directory.uid} on these files: the agent cannot use them.`,
    )
  },
  'file-system': ({ fileSystem, directory }) => {
    if (isProblem(fileSystem)) return unlooked(fileSystem)
    if (fileSystem.readOnly) {
      return fail(
        `${directory.path} is on a read-only file system, so the agent cannot start`,
        'Mount it for writing. If the kernel made it read-only (dmesg), check the disk first.',
      )
    }
    if (fileSystem.immutable !== null) {
      return fail(`${fileSystem.immutable} is immutable, so the agent cannot start`, 'Run chattr -i on it.')
    }
    if (VOLATILE.has(fileSystem.type)) {
      return fail(
        `${directory.path} is on ${fileSystem.type}, which loses recorded charges at a restart`,
        'Set state.directory to persistent storage, or mount a volume there.',
      )
    }
    if (REMOTE.has(fileSystem.type)) {
      return fail(`${directory.path} is on ${fileSystem.type}`, 'Set state.directory to local storage.')
    }
    return ok(`${directory.path} is on ${fileSystem.type}`)
  },
  'disk-space': ({ fileSystem, diskReserve, settings }) => {
    if (isProblem(fileSystem)) return unlooked(fileSystem)
    const { free, total } = fileSystem
    const evidence = `${sizeInWords(free)} of ${sizeInWords(total)} free`
    // While the reserved space is there, the device records in the rest.
    const isReserved = diskReserve.kind === 'file' && diskReserve.size >= settings.state.diskReserve
    const needed = isReserved ? MIB : settings.state.diskReserve
    const limit = `${sizeInWords(needed)}${isReserved ? '' : ' (state.disk_reserve)'}`
    if (free < needed)
      return fail(
        evidence,
        `Free disk space: with less than ${limit}, the device cannot record decisions and refuses all requests.`,
      )
    if (free < 8 * settings.state.diskReserve) return warn(evidence, 'Free disk space before the ledger needs it.')
    return ok(evidence)
  },
  inodes: ({ fileSystem }) => {
    if (isProblem(fileSystem)) return unlooked(fileSystem)
    const { inodesFree, inodesTotal } = fileSystem
    if (inodesTotal === 0) return skip('the file system does not count inodes')
    const evidence = `${inodesFree} of ${inodesTotal} free`
    if (inodesFree < 16) return fail(evidence, 'Remove unneeded files: no new files can be created.')
    return inodesFree < 1_000 ? warn(evidence, 'Remove unneeded files.') : ok(evidence)
  },
  'reserve-file': ({ diskReserve, settings, database }) => {
    if (database.kind === 'none') return skip('there is no ledger yet')
    if (diskReserve.kind === 'hidden') return warn(describeFile(diskReserve), 'Run doctor as root.')
    const wanted = settings.state.diskReserve
    if (diskReserve.kind === 'file' && diskReserve.size >= wanted)
      return ok(`${diskReserve.path} reserves ${sizeInWords(diskReserve.size)}`)
    const evidence = `${diskReserve.path} ${diskReserve.kind === 'file' ? `reserves ${sizeInWords(diskReserve.size)} of ${sizeInWords(wanted)}` : 'is missing'}`
    return warn(
      evidence,
      'Free disk space. A running agent fills the file again within a minute. Otherwise, run doctor --fix.',
    )
  },
  'reserve-directory': ({ reserveFileSystem, settings }) => {
    if (reserveFileSystem === null) return skip('write-behind is off')
    if (isProblem(reserveFileSystem))
      return warn(`${settings.writeBehind.directory}: ${reserveFileSystem.message}`, 'Create the directory.')
    return reserveFileSystem.type === 'tmpfs' || reserveFileSystem.type === 'ramfs'
      ? ok(`${settings.writeBehind.directory} is on ${reserveFileSystem.type}`)
      : warn(
          `${settings.writeBehind.directory} is on ${reserveFileSystem.type}: each decision writes to it and wears out the storage`,
          'Set write_behind.directory to a directory on tmpfs that survives restarts of the agent, for example below /run (in a container: of the host).',
        )
  },
  database: ({ database, inspected: { problem, quickCheck }, agent }) => {
    if (database.kind === 'none') {
      return isProblem(agent)
        ? skip('there is no ledger yet')
        : fail(
            `${database.path} is missing while the agent runs`,
            'If the agent uses another state directory, give doctor the same settings (TALLYGATE_AGENT_STATE_DIRECTORY). Otherwise restart the agent.',
          )
    }
    if (isStarting(agent)) return skip(LEDGER_IN_CHECK)
    if (problem?.code === 'LEDGER_UNREADABLE')
      return warn(
        problem.message,
        // A readable one can lack space for its copy.
        database.readable ? 'Correct this, then run doctor again.' : 'Run doctor as root or as the user of the agent.',
      )
    if (problem?.code === 'DISK_FAILED') return fail(problem.message, DISK_REMEDY)
    if (problem !== null)
      return fail(
        problem.message,
        'Keep this file: it may contain unbilled usage. Restart the agent, which moves the file aside.',
      )
    return quickCheck === 'ok'
      ? ok('SQLite quick_check found no problems')
      : fail(
          `SQLite quick_check reports: ${quickCheck ?? 'no result'}`,
          'Keep this file. Restart the agent: it moves the file aside and delivers the entries that it can prove.',
        )
  },
  'database-permissions': ({ database, log }) => {
    if (database.kind !== 'file') return skip('there is no ledger yet')
    const open = [database, log].filter(({ kind, mode }) => kind === 'file' && (mode & 0o077) !== 0)
    return open.length === 0
      ? ok(describeFile(database))
      : fail(open.map(describeFile).join(', '), 'Run chmod 600 on these files, or run doctor --fix.')
  },
  'hash-chain': ({ verification, database, agent }) => {
    if (database.kind === 'none') return skip('there is no ledger yet')
    if (isStarting(agent)) return skip(LEDGER_IN_CHECK)
    if (isProblem(verification)) {
      const check = verification.code === 'DATABASE_NEWER' ? 'schema' : 'database'
      return warn(`not checked: ${verification.message}`, `See the check "${check}".`)
    }
    const { findings, checked } = verification
    const [first] = findings
    if (first === undefined)
      return ok(
        `consistent: ${counted(checked.entries, 'entry', 'entries')}, ${counted(checked.segments, 'segment', 'segments')}, ${counted(checked.receipts, 'receipt', 'receipts')}`,
      )
    return fail(
      `${counted(findings.length, 'finding', 'findings')}, the first: ${first.where}: ${first.kind}: ${first.problem}`,
      'Export the ledger (tallygate verify --export <file>) and look for a copied or altered database. Do not delete it.',
    )
  },
  backup: ({ backup, isBackupThere, settings, now }) => {
    const { maxAge } = settings.backup
    const remedy = 'Run tallygate backup <file>, for example from a timer.'
    if (backup === null) {
      return maxAge === 0
        ? skip('no backup recorded, and none is required (backup.max_age)')
        : warn(`no backup recorded; backup.max_age is ${roughly(maxAge)}`, remedy)
    }
    const age = Math.max(0, now - backup.at)
    const there = isBackupThere ? '' : ' (not accessible now)'
    const evidence = `last backup ${roughly(age)} ago: ${backup.file}${there}`
    return maxAge > 0 && age > maxAge ? warn(`${evidence}; backup.max_age is ${roughly(maxAge)}`, remedy) : ok(evidence)
  },
  schema: (observations) => {
    const { schema, knownSchema } = observations.inspected
    if (schema === null) return skip(unreadReason(observations) ?? 'there is no ledger yet')
    if (schema > knownSchema)
      return fail(
        `schema ${schema} is newer than ${knownSchema}, the newest that this version supports`,
        'Install the newer tallygate version again.',
      )
    return schema < knownSchema
      ? ok(`schema ${schema}; the next start upgrades it to ${knownSchema}`)
      : ok(`schema ${schema}`)
  },
  'write-ahead-log': ({ log, settings }) => {
    if (log.kind !== 'file') return ok('there is none')
    const most = Math.max(64 * MIB, 4 * settings.state.diskReserve)
    return log.size <= most
      ? ok(sizeInWords(log.size))
      : warn(sizeInWords(log.size), 'Free disk space and restart the agent, or stop the agent and run doctor --fix.')
  },
  'damaged-ledgers': (observations) => {
    const [last] = observations.inspected.salvages.slice(-1)
    if (last === undefined) {
      const unread = unreadReason(observations)
      return unread === null ? ok('no damaged ledger was ever moved aside') : skip(unread)
    }
    const lost = last.lostEntries === null ? 'an unknown number' : String(last.lostEntries)
    return warn(
      `${last.file} was moved aside (${last.why}); ${counted(last.salvagedEntries, 'entry', 'entries')} salvaged, ${lost} lost`,
      ERRORS.LEDGER_SALVAGED.remedy,
    )
  },
  enrollment: (observations) => {
    const { agent, settings, enrollmentToken, directory, configuration } = observations
    const unknown = unknownReason(observations)
    if (unknown !== null) return skip(unknown)
    const deviceId = deviceIdOf(observations)
    if (deviceId !== null) return ok(`device ${deviceId}`)
    const { kind, mode, uid, path } = enrollmentToken
    const isHidden = kind === 'file' && directory.uid !== 0 && directory.uid !== uid && (mode & 0o044) === 0
    if (directory.kind === 'directory' && isHidden) {
      return fail(
        `not enrolled, and the agent (uid ${directory.uid}) may not read ${describeFile(enrollmentToken)}`,
        `Run chown ${directory.uid} ${path}, then restart the agent (with systemd: systemctl restart tallygate-agent).`,
      )
    }
    const hasToken = settings.enrollment.token instanceof Secret
    const ask = 'Ask an administrator for one: tallygate devices enrollment-token.'
    if (isProblem(agent) && !hasToken) {
      const missing = kind === 'none' ? ` (${path} does not exist)` : ''
      return fail(`not enrolled, and ${settingsIn(configuration.choice)} name no enrollment token${missing}`, ask)
    }
    const conditions = isProblem(agent) ? [] : agent.conditions
    const refused = conditions.find(({ code }) => code === 'ENROLLMENT_REFUSED')
    if (refused !== undefined) {
      const renew = `${ERRORS.ENROLLMENT_REFUSED.remedy} Save it on this device, then restart the agent.`
      return fail(`not enrolled: ${refused.message}`, renew)
    }
    const without = conditions.find(({ code }) => code === 'NOT_ENROLLED')
    if (without !== undefined) {
      // The settings are read again at a start.
      const restart = 'Restart the agent (with systemd: systemctl restart tallygate-agent).'
      return fail(`not enrolled: ${without.message}`, hasToken ? restart : ask)
    }
    return warn(
      'not enrolled yet; an enrollment token is set',
      'Connect the device to the cloud; tallygate status shows what prevents the enrollment.',
    )
  },
  key: ({ key, settings, inspected: { identity } }) => {
    if (key.kind === 'none' && identity === null && settings.device.keyFile === null) {
      return skip('no key yet: the agent generates it at its first start')
    }
    if (key.kind === 'none') return fail(`${key.path} does not exist`, 'Put the key back, or enroll the device again.')
    if (!key.readable) return warn(`this user cannot read ${key.path}`, 'Run doctor as root.')
    // A service manager passes keys with an access list, which appears as group permissions.
    const open = key.kind === 'file' && (key.mode & (settings.device.keyFile === null ? 0o077 : 0o007)) !== 0
    if (open)
      return fail(
        describeFile(key),
        'Run chmod 600 on it, or run doctor --fix: any user who can read the key can act as the device.',
      )
    return key.problem === null
      ? ok(describeFile(key))
      : fail(
          key.problem.message,
          key.problem.code === 'DISK_FAILED' ? DISK_REMEDY : 'Put the key back, or enroll the device again.',
        )
  },
  'key-fits': ({ key: { keyId, nextKeyId }, inspected: { identity }, settings, now }) => {
    if (keyId === null || identity === null) return skip('no key or no enrollment to compare')
    const { keySince, nextKey = null } = identity
    const age = keySince === undefined ? '' : `, for ${roughly(Math.max(0, now - keySince))}`
    if (keyId === identity.keyId) {
      const wanted = nextKey === null ? '' : `; ${nextKey.id} replaces it once the cloud is reached`
      return ok(`the key file contains the key of the device: ${keyId}${age}${wanted}`)
    }
    if (nextKeyId === identity.keyId) {
      return settings.device.keyFile === null
        ? warn('a key change was interrupted', 'Start the agent: it completes the change.')
        : ok(`device.next_key_file is the key of the device: ${nextKeyId}${age}`)
    }
    return fail(
      'the key file does not contain the key of the device',
      'Put the newest key back, or enroll the device again: the cloud refuses this key.',
    )
  },
  attachment: (observations) => {
    const { agent, inspected } = observations
    const { state } = inspected
    const unknown = unknownReason(observations)
    if (unknown !== null) return skip(unknown)
    if (deviceIdOf(observations) === null) return skip(NOT_ENROLLED)
    const epoch = isProblem(agent) ? Number(state?.['epoch'] ?? 0) : agent.epoch
    if (!isProblem(agent) && agent.suspension?.state === 'TERMINATED') {
      return ok(`epoch ${epoch}, ended with the service of the device`)
    }
    const fenced = isProblem(agent) ? state?.['fenced'] === 1 : agent.fenced
    if (fenced) {
      return fail(
        `epoch ${epoch} is fenced`,
        'Look for a second device with the same state. This device attaches again by itself once it is online, unless the cloud refuses it.',
      )
    }
    return epoch === 0 ? warn('this ledger is not attached yet', ERRORS.NOT_ATTACHED.remedy) : ok(`epoch ${epoch}`)
  },
  rules: (observations) => {
    const { policies, identity } = observations.inspected
    if (identity === null) return skip(unreadReason(observations) ?? NOT_ENROLLED)
    const missing = identity.instanceIds.filter((id) => !policies.some(({ instanceId }) => instanceId === id))
    if (missing.length > 0) return fail(`no rules for ${missing.join(', ')}`, 'Connect the device to the cloud.')
    for (const { revision, engine, oldestEngine, ...instance } of policies) {
      if (engine === null || oldestEngine === null) continue
      const outdated = outdatedSide(ENGINE, { version: engine, oldest: oldestEngine })
      if (outdated === null) continue
      const says = `revision ${revision} of ${instanceInWords(instance)} is for engine ${engine}, this is engine ${ENGINE.version}`
      return fail(says, ERRORS[`${outdated}_ENGINE_OLD`].remedy)
    }
    const { agent } = observations
    // As the agent judges it: the wall clock may be wrong.
    const now = isProblem(agent) ? observations.now : (agent.clock.latest ?? agent.clock.earliest)
    const aged = policies.map(({ revision, issuedAt, usableForMs, confirmedAt, ...instance }) => {
      const from = confirmedAt > 0 ? confirmedAt : issuedAt
      const until = from === null || usableForMs === null ? now : from + usableForMs
      const says = `revision ${revision} of ${instanceInWords(instance)}`
      return { leftMs: until - now, usableForMs: usableForMs ?? 0, says }
    })
    const worst = aged.toSorted((a, b) => a.leftMs - b.leftMs)[0]
    if (worst === undefined) return skip('the device serves no instance')
    if (worst.leftMs <= 0) return fail(`${worst.says} can no longer be used`, 'Connect the device to the cloud once.')
    const evidence = `${worst.says} can be used for another ${roughly(worst.leftMs)} without the cloud`
    return worst.leftMs < Math.min(worst.usableForMs / 4, 2 * DAY_MS)
      ? warn(evidence, 'Connect the device to the cloud.')
      : ok(evidence)
  },
  'newest-rules': ({ agent }) => {
    if (isProblem(agent)) return skip(noAnswerReason(agent))
    const behind = agent.policies.filter(({ applied, newest }) => newest > applied)
    if (behind.length === 0) return ok('no newer rules are known')
    const says = behind
      .map(
        ({ applied, newest, ...instance }) => `${instanceInWords(instance)}: ${applied} applied, ${newest} available`,
      )
      .join(', ')
    return warn(says, 'tallygate status shows the reason. The current rules stay in force until then.')
  },
  grants: ({ agent }) => {
    if (isProblem(agent)) return skip(noAnswerReason(agent))
    if (agent.deviceId === null) return skip(NOT_ENROLLED)
    if (agent.grant === null) return warn('the device has no grant', 'Connect the device to the cloud.')
    if (agent.grant.remainingMs === 0)
      return fail('the grant has expired', 'Connect the device to the cloud: it grants no requests until then.')
    return tokensLeft(agent)
  },
  backlog: (observations) => {
    const { agent, inspected } = observations
    const { state } = inspected
    const recorded = state?.['backlog'] ?? null
    if (isProblem(agent) && recorded === null) return skip(unreadReason(observations) ?? 'there is no ledger yet')
    const backlog = isProblem(agent) ? Number(recorded) : agent.backlog
    if (!isProblem(agent) && agent.connected && backlog > 10_000) {
      return warn(
        `${backlog} entries are not in the cloud, although the device is connected`,
        'tallygate logs shows the responses of the cloud.',
      )
    }
    // The log of the write-behind mode may contain more.
    const more = isProblem(agent) && Number(state?.['open_reservations']) > 0 ? 'at least ' : ''
    return ok(`${more}${counted(backlog, 'entry is', 'entries are')} not in the cloud yet`)
  },
  conditions: ({ agent }) => {
    if (isProblem(agent)) return skip(noAnswerReason(agent))
    if (agent.conditions.length === 0) return ok('the agent reports no problems')
    const says = agent.conditions.map(({ subject, code, message }) => `${subject}: ${code}: ${message}`).join('; ')
    const isGrave = agent.conditions.some(({ subject }) => subject === 'ledger')
    const remedies = new Set(agent.conditions.map(({ code }) => remedyOf(code)))
    const [only] = remedies
    const remedy = remedies.size === 1 && only ? only : 'tallygate status shows the remedy for each.'
    return isGrave ? fail(says, remedy) : warn(says, remedy)
  },
  clock: (observations) => {
    const { agent, now, signIn } = observations
    const unknown = unknownReason(observations)
    if (unknown !== null) return skip(unknown)
    if (!isProblem(agent)) {
      const off = clockErrorMs(agent.clock, now)
      const evidence = `the wall clock is ${roughly(off)} off the time signed by the cloud`
      if (off > CLOCK_OFF_MS) return warn(evidence, ERRORS.CLOCK_WRONG.remedy)
      if (agent.clock.latest !== null) return ok(evidence)
    }
    if (deviceIdOf(observations) === null) return skip(NOT_ENROLLED)
    const date = signIn === null || isProblem(signIn) ? null : signIn.date
    if (date === null)
      return warn("the wall clock cannot be compared with the cloud's clock", 'Connect the device to the cloud.')
    const off = Math.abs(now - date)
    const evidence = `the wall clock is ${roughly(off)} off the cloud's clock (unsigned)`
    return off > CLOCK_OFF_MS ? warn(evidence, ERRORS.CLOCK_WRONG.remedy) : ok(evidence)
  },
  'time-zone': ({ timeZone: { name, rules } }) =>
    rules
      ? ok(name)
      : warn(
          `the data of the time zone ${name} is missing`,
          'Set TZ to an existing zone, or install tzdata: times are shown in UTC until then.',
        ),
  'cloud-name': atPlace('cloud', nameOf),
  'cloud-reachable': atPlace('cloud', (cloud) =>
    reachable(
      cloud,
      'Check cable, route and firewall. `tallygate status` shows whether and how long the device still decides.',
    ),
  ),
  'cloud-certificate': atPlace('cloud', certificateOf),
  'cloud-certificate-expiry': atPlace('cloud', (cloud, { now }) => expiryOf(cloud, now)),
  'sign-in': ({ signIn, version }) => {
    if (signIn === null) return skip('no key, enrollment or connection to test with')
    if (isProblem(signIn)) {
      const isKey = signIn.code === 'DEVICE_KEY_UNUSABLE'
      return warn(signIn.message, isKey ? 'See the check "key".' : 'See the checks that begin with "cloud".')
    }
    const { status, code, words, twinVersion } = signIn
    if (twinVersion === null && code === null && status < 500) {
      const remedy = 'Check any proxy or sign-in page of the network between this device and the cloud.'
      return warn(`the response (HTTP status ${status}) does not come from the cloud`, remedy)
    }
    if (status === 200 || status === 304) {
      return ok(`the cloud accepts the device; cloud version ${twinVersion}, device version ${version}`)
    }
    if (status >= 500) return warn(`the cloud responds ${status}`, 'Contact the operator of the cloud.')
    const answer = `the cloud responds ${status} ${code ?? ''}`.trimEnd()
    return fail(words === null ? answer : `${answer}: ${words}`, signInRemedy(code))
  },
  'broker-name': atPlace('broker', nameOf),
  'broker-reachable': atPlace('broker', (broker) =>
    reachable(broker, 'Check address and firewall. Without the broker, the device finds changes at its next sync.'),
  ),
  'broker-certificate': atPlace('broker', certificateOf),
  memory: ({ memory: { available, total, limit, used } }) => {
    if (limit !== null && limit < MEMORY_MIN) {
      return warn(
        `the limit is ${sizeInWords(limit)}`,
        `Raise the limit (with systemd: MemoryMax) to ${sizeInWords(MEMORY_MIN)} or more.`,
      )
    }
    if (limit !== null && used !== null && used > 0.9 * limit) {
      return warn(
        `${sizeInWords(used)} of the limit of ${sizeInWords(limit)} is used`,
        'Raise the limit (with systemd: MemoryMax), or find out which process uses the memory.',
      )
    }
    if (available === null) return skip('the system does not report it')
    const evidence = `${sizeInWords(available)} of ${sizeInWords(total ?? 0)} available, ${limit === null ? 'no limit' : `limit ${sizeInWords(limit)}`}`
    return available < MEMORY_MIN / 2
      ? warn(evidence, 'Stop unneeded programs: the system may kill the agent to free memory.')
      : ok(evidence)
  },
  'open-files': ({ openFilesMax, settings: { socket } }) => {
    if (openFilesMax === null) return skip('no running agent shows its limit')
    const evidence = `the agent may have ${openFilesMax} open files; socket.connections_max is ${socket.connectionsMax}`
    return openFilesMax < socket.connectionsMax + OWN_FILES
      ? warn(evidence, `${ERRORS.OPEN_FILES_USED_UP.remedy} Or lower socket.connections_max.`)
      : ok(evidence)
  },
}

function tokensLeft(status: AgentStatus): Finding {
  const { accounts } = status
  const lines = accounts.filter(({ account }) => isLineAccount(account))
  const left = lines.reduce((sum, account) => sum + (available(account) > 0n ? available(account) : 0n), 0n)
  const ms = offlineMs(status)
  const within = ms === 0 ? '' : ` for another ${roughly(ms)} without the cloud`
  if (lines.some(({ unlimited }) => unlimited)) return ok(`unlimited tokens${within}`)
  return left === 0n
    ? warn(`no tokens are left${within}`, 'Connect the device to the cloud. If the pool is used up, buy more tokens.')
    : ok(`${formatMicro(left)} tokens are left${within}`)
}

function nameOf(endpoint: EndpointObservation): Finding {
  const { host, addresses, proxy } = endpoint
  if (proxy !== null) return ok(`the proxy ${proxy} resolves ${host}`)
  if (!isProblem(addresses)) return ok(`${host} resolves to ${addresses.slice(0, 4).join(', ')}`)
  const remedy = 'Check the name server (with systemd: resolvectl status) and the spelling of the host name.'
  return warn(`${host}: ${addresses.message}`, remedy)
}

function reachable(endpoint: EndpointObservation, remedy: string): Finding {
  const { host, port, connected, proxy } = endpoint
  const way = proxy === null ? '' : ` through the proxy ${proxy}`
  if (!isProblem(connected)) return ok(`${host}:${port} responds${way} in ${connected} ms`)
  const advice =
    proxy === null ? remedy : `Check proxy.url, proxy.credentials_file, HTTPS_PROXY and NO_PROXY. ${remedy}`
  return warn(`${host}:${port}${way}: ${connected.message}`, advice)
}

function certificateOf(endpoint: EndpointObservation): Finding {
  if (!endpoint.secure) {
    const evidence = `${endpoint.url} is not encrypted`
    return isLoopback(endpoint.host)
      ? ok(`${evidence}, but stays on this machine`)
      : warn(evidence, 'Use TLS: without it, others on the network can read tokens and usage.')
  }
  const { certificate } = endpoint
  if (certificate === null) return skip('no response')
  const evidence = `${certificate.subject}, by ${certificate.issuer}`
  if (certificate.distrust === null) return ok(evidence)
  const remedy = `Correct the certificate, or add its authority to tls.ca_file and restart the agent. Also check the clock: a wrong clock has the same effect.`
  return warn(`${evidence}: ${certificate.distrust}`, remedy)
}

function expiryOf(endpoint: EndpointObservation, now: number): Finding {
  const validTo = endpoint.certificate?.validTo ?? null
  if (validTo === null) return skip('there is no certificate')
  const left = validTo - now
  const until = new Date(validTo).toISOString()
  if (left <= 0) return warn(`expired at ${until}`, 'Renew the certificate, or set the clock of the device.')
  return left < CERTIFICATE_LEFT_MS ? warn(`expires at ${until}`, 'Renew the certificate.') : ok(`valid until ${until}`)
}

function unlooked({ message }: Problem): Finding {
  return warn(message, 'Run doctor as root or as the user of the agent.')
}

function describeFile({ path, mode, uid, kind }: FileObservation): string {
  if (kind === 'none') return `${path} is missing`
  return kind === 'hidden' ? `this user cannot access ${path}` : `${path} (0${mode.toString(8)}, uid ${uid})`
}
