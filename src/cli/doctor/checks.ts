/**
 * The checks of `tallygate doctor`: each looks at the gathered facts alone and says ok, warn, fail or that it does not apply,
 * with its evidence and what to do. A device that is offline and can go on deciding is not broken: what only the network keeps
 * from being known is a warning. The names are for programs and stay as they are.
 */
import { formatMicro } from '../../core/amount.ts'
import { room } from '../../core/grant.ts'
import { roughly, sizeInWords } from '../../core/in-words.ts'
import { ERRORS, type ErrorCode } from '../../protocol/errors.ts'
import type { AgentStatus } from '../../protocol/local/status.ts'
import type { DoctorFacts, EndpointFacts, FileFacts, Problem } from './facts.ts'
import { isProblem } from './facts.ts'
import type { Choice, ChoiceWhy, OtherAgent } from './sources.ts'

export type Level = 'ok' | 'warn' | 'fail' | 'skip'

export interface Finding {
  readonly level: Level
  readonly evidence: string
  /** Empty for ok and skip. */
  readonly remedy: string
}

export interface Check {
  readonly name: string
  readonly run: (facts: DoctorFacts) => Finding
}

const ok = (evidence: string): Finding => ({ level: 'ok', evidence, remedy: '' })
const skip = (evidence: string): Finding => ({ level: 'skip', evidence, remedy: '' })
const warn = (evidence: string, remedy: string): Finding => ({ level: 'warn', evidence, remedy })
const fail = (evidence: string, remedy: string): Finding => ({ level: 'fail', evidence, remedy })

const MIB = 1024 * 1024
const DAY_MS = 86_400_000

/** Below this, a version of SQLite has bugs of the write-ahead log that are known to damage databases. */
const OLDEST_SQLITE = [3, 51, 3]

/** What the agent needs to live, with some room. */
const MEMORY_MIN = 128 * MIB

/** A certificate with less time than this is renewed by now where renewal works. */
const CERTIFICATE_LEFT_MS = 14 * DAY_MS

/** Further from the signed time than this, the wall clock misleads people, and tokens get refused. */
const CLOCK_OFF_MS = 60_000

/** File systems that forget at a restart of the machine or of the container. */
const VOLATILE = new Set(['tmpfs', 'ramfs', 'overlayfs', 'squashfs', 'zram'])

/** File systems over a network: their locks and flushes are not to be relied upon. */
const REMOTE = new Set(['nfs', 'cifs', 'smb2', '9p', 'fuse'])

/** The catalogue advises who made the token; here that is the device, with its key and its clock. */
function signInRemedy(code: string | null): string {
  if (code === 'TOKEN_NOT_IN_TIME') return SET_CLOCK
  if (code === 'TOKEN_INVALID') {
    return 'The cloud does not know this key: put back the one that was enrolled (see key-fits), or enroll the device again.'
  }
  return remedyOf(code) ?? 'Have the operator of the cloud look at it; the device may have to be enrolled again.'
}

function remedyOf(code: string | null): string | undefined {
  return code !== null && Object.hasOwn(ERRORS, code) ? ERRORS[code as ErrorCode].remedy : undefined
}

/** Whose settings count, and why. */
const WHY: Readonly<Record<ChoiceWhy, (choice: Choice) => string>> = {
  SOCKET: ({ process }) => `what process ${processName(process)} was started with, which listens there`,
  ENVIRONMENT: () => 'the environment of this command (TALLYGATE_AGENT_...)',
  ONLY: ({ process, others }) => {
    const believed = others.length === 0 ? '' : ' and whose settings this user may take'
    return `what process ${processName(process)} was started with, the only agent that runs${believed}`
  },
  NONE: ({ others }) => {
    const believed = others.length === 0 ? 'is seen to run' : 'runs whose settings this user may take'
    return `the settings of this machine, as no agent ${believed}`
  },
  SEVERAL: () => 'the settings of this machine, as several agents run',
}

function processName(process: Choice['process']): string {
  return process === null ? '' : `${process.pid} of ${process.user}`
}

const UNKNOWN_SOCKET = {
  NOT_READABLE: 'runs, and this user may not see how it was started',
  NOT_TRUSTED: 'runs, and is neither of this user nor of the service',
  SETTINGS_WRONG: 'runs, with settings that cannot be used',
}

function describeOther({ pid, user, socket }: OtherAgent): string {
  return `process ${pid} of ${user} ${typeof socket === 'string' ? UNKNOWN_SOCKET[socket] : `listens on ${socket.path}`}`
}

const NOT_ENROLLED = 'the device is not enrolled, so it knows no cloud yet'

export const CHECKS: readonly Check[] = [
  {
    name: 'asked-agent',
    run: ({ configuration: { choice }, socket, agent }) => {
      const { isNamed, why, others } = choice
      const place = isNamed ? `${socket.path}, named by --socket` : socket.path
      const evidence = [`${place}: by ${WHY[why](choice)}`, ...others.map(describeOther)].join('; ')
      const settings = 'name its settings (TALLYGATE_AGENT_CONFIG, TALLYGATE_AGENT_STATE_DIRECTORY)'
      if (why === 'SEVERAL') {
        return warn(evidence, `Say which one is meant: ${isNamed ? '' : 'its --socket, or '}${settings}.`)
      }
      const [only] = others
      // The one that answers where the settings of this machine say is the one that is meant.
      return why === 'NONE' && only !== undefined && isProblem(agent)
        ? warn(evidence, `If that one is meant, run doctor as ${only.user}, or ${settings}.`)
        : ok(evidence)
    },
  },
  {
    name: 'configuration',
    run: ({ configuration: { file, choice, otherSocket, problem }, settings, socket }) => {
      if (problem !== null)
        return fail(
          `${problem.code}: ${problem.message}`,
          'Correct it; docs/reference/configuration.md lists every setting.',
        )
      const named = file === null ? 'no settings file' : `${file} is valid, with no unknown key`
      const { process } = choice
      const whose = process === null ? 'the environment' : `environment and flags of process ${process.pid}`
      const where = `${named}; with ${whose}, the state is in ${settings.state.directory}`
      if (otherSocket === null) return ok(where)
      return warn(
        `${where}, and the socket ${otherSocket}; ${socket.path} may belong to another agent, with other files`,
        'Give doctor the settings of the agent that is meant: TALLYGATE_AGENT_CONFIG, TALLYGATE_AGENT_STATE_DIRECTORY.',
      )
    },
  },
  {
    name: 'configuration-files',
    run: ({ configuration: { file, files } }) => {
      // Others may read the settings, and none of the secrets.
      const open = files.filter(
        ({ kind, mode, path }) => kind === 'file' && (mode & (path === file ? 0o002 : 0o007)) !== 0,
      )
      if (open.length > 0)
        return fail(open.map(describeFile).join(', '), 'chmod o-rwx these files, or run doctor --fix.')
      return ok(files.length === 0 ? 'there are none' : files.map(describeFile).join(', '))
    },
  },
  {
    name: 'node',
    run: ({ node: { version, oldestMajor } }) =>
      Number(version.split('.')[0]) >= oldestMajor
        ? ok(`Node ${version}`)
        : fail(`Node ${version} is older than ${oldestMajor}`, 'Use the runtime of the package.'),
  },
  {
    name: 'sqlite',
    run: ({ sqlite }) => {
      const parts = sqlite.split('.').map(Number)
      const difference = OLDEST_SQLITE.map((part, index) => (parts[index] ?? 0) - part).find((each) => each !== 0) ?? 0
      return difference >= 0
        ? ok(`SQLite ${sqlite}`)
        : fail(
            `SQLite ${sqlite} is older than ${OLDEST_SQLITE.join('.')}`,
            'Install the package again, with its dependencies.',
          )
    },
  },
  {
    name: 'agent',
    run: ({ agent, agents }) => {
      if (!isProblem(agent)) return ok('the agent answers on its socket')
      if (agent.code === 'CALLER_NOT_ALLOWED')
        return warn(agent.message, 'Run doctor as root, or let this user in (callers.observe).')
      const running =
        agents.length > 0 ? `process ${agents.map(({ pid }) => pid).join(', ')} runs and does not answer` : 'none runs'
      return fail(
        `${agent.message} ${running}`,
        'Start it (systemctl start tallygate-agent); tallygate logs says why it ended.',
      )
    },
  },
  {
    name: 'agent-version',
    run: ({ agent, version }) => {
      if (isProblem(agent)) return skip('no agent answers')
      return agent.version === version
        ? ok(`agent and command have version ${version}`)
        : warn(
            `the agent has version ${agent.version}, this command ${version}`,
            'Restart the agent, so that it runs what is installed.',
          )
    },
  },
  {
    name: 'single-agent',
    run: ({ agent, agents }) =>
      agents.length <= 1
        ? ok(
            agents.length === 0
              ? isProblem(agent)
                ? 'no agent runs'
                : 'one answers, whose process this user does not see'
              : `process ${agents[0]?.pid ?? 0} of ${agents[0]?.user ?? ''}`,
          )
        : warn(
            `${agents.length} agents run: ${agents.map(({ pid, user, command }) => `${pid} of ${user} (${command})`).join(', ')}`,
            'Stop all but one, unless each has a state directory, a socket and an enrollment of its own.',
          ),
  },
  {
    name: 'socket',
    run: ({ socket, agent, isListened }) => {
      if (socket.kind === 'none') {
        return isProblem(agent)
          ? skip('no agent runs, and there is none')
          : fail(`${socket.path} is gone`, 'Restart the agent.')
      }
      if (socket.kind !== 'socket')
        return fail(`${socket.path} is a ${socket.kind}`, 'Move it away, or set another socket.path.')
      if (isProblem(agent) && isListened === false) {
        return warn(
          `${socket.path} is left over: nobody listens`,
          'doctor --fix removes it; the agent does too when it starts.',
        )
      }
      return ok(describeFile(socket))
    },
  },
  {
    name: 'socket-permissions',
    run: ({ socket, settings }) => {
      if (socket.kind !== 'socket') return skip('there is no socket')
      const wanted = Number.parseInt(settings.socket.mode, 8)
      if (socket.mode === wanted) return ok(describeFile(socket))
      const asked = `socket.mode is ${settings.socket.mode}`
      return warn(
        `${describeFile(socket)}, and ${asked}: who may connect may spend`,
        'Restart the agent, or run doctor --fix.',
      )
    },
  },
  {
    name: 'state-directory',
    run: ({ directory }) => {
      if (directory.kind === 'none')
        return fail(`${directory.path} does not exist`, 'Start the agent: it makes the directory.')
      if (directory.kind === 'hidden') return warn(`${directory.path} may not be looked into`, 'Run doctor as root.')
      if (directory.kind !== 'directory')
        return fail(`${directory.path} is a ${directory.kind}`, 'Set state.directory to a directory.')
      if ((directory.mode & 0o022) !== 0) {
        return fail(describeFile(directory), 'chmod 700, or run doctor --fix: whoever can write there can spend.')
      }
      if ((directory.mode & 0o007) !== 0) return warn(describeFile(directory), 'chmod 700, or run doctor --fix.')
      return ok(describeFile(directory))
    },
  },
  {
    name: 'owners',
    run: ({ directory, database, key, log, slack }) => {
      if (directory.kind !== 'directory') return skip('there is no state directory')
      const others = [database, log, slack, ...(key.path.startsWith(`${directory.path}/`) ? [key] : [])].filter(
        ({ kind, uid }) => kind === 'file' && uid !== directory.uid,
      )
      if (others.length === 0) return ok(`all of uid ${directory.uid}`)
      const whom = others.map(({ path, uid }) => `${path} of uid ${uid}`).join(', ')
      return fail(
        `${whom}; the directory is of uid ${directory.uid}`,
        `chown them to uid ${directory.uid}: the agent cannot use them.`,
      )
    },
  },
  {
    name: 'file-system',
    run: ({ fileSystem, directory }) => {
      if (isProblem(fileSystem)) return unlooked(fileSystem)
      if (VOLATILE.has(fileSystem.type)) {
        return fail(
          `${directory.path} is on ${fileSystem.type}, which forgets what was charged`,
          'Set state.directory to storage that stays, or mount a volume there.',
        )
      }
      if (REMOTE.has(fileSystem.type)) {
        return fail(`${directory.path} is on ${fileSystem.type}`, 'Set state.directory to storage of this machine.')
      }
      return ok(`${directory.path} is on ${fileSystem.type}`)
    },
  },
  {
    name: 'disk-space',
    run: ({ fileSystem, settings }) => {
      if (isProblem(fileSystem)) return unlooked(fileSystem)
      const { free, total } = fileSystem
      const evidence = `${sizeInWords(free)} of ${sizeInWords(total)} free`
      if (free < settings.state.slack)
        return fail(evidence, 'Make room: a device that can record nothing refuses everything.')
      if (free < 8 * settings.state.slack) return warn(evidence, 'Make room before the ledger needs it.')
      return ok(evidence)
    },
  },
  {
    name: 'inodes',
    run: ({ fileSystem }) => {
      if (isProblem(fileSystem)) return unlooked(fileSystem)
      const { inodesFree, inodesTotal } = fileSystem
      if (inodesTotal === 0) return skip('the file system does not count them')
      const evidence = `${inodesFree} of ${inodesTotal} free`
      if (inodesFree < 16) return fail(evidence, 'Remove files that nothing needs: none can be made.')
      return inodesFree < 1_000 ? warn(evidence, 'Remove files that nothing needs.') : ok(evidence)
    },
  },
  {
    name: 'reserve-file',
    run: ({ slack, settings, database }) => {
      if (database.kind === 'none') return skip('there is no ledger yet')
      const wanted = settings.state.slack
      if (slack.kind === 'file' && slack.size >= wanted) return ok(`${slack.path} holds ${sizeInWords(slack.size)}`)
      const evidence = `${slack.path} ${slack.kind === 'file' ? `holds ${sizeInWords(slack.size)} of ${sizeInWords(wanted)}` : 'is missing'}`
      return warn(evidence, 'Make room on the disk; the agent fills it at its next start, doctor --fix does it now.')
    },
  },
  {
    name: 'reserve-directory',
    run: ({ reserveFileSystem, settings }) => {
      if (reserveFileSystem === null) return skip('nothing is reserved ahead')
      if (isProblem(reserveFileSystem))
        return warn(`${settings.reserve.directory}: ${reserveFileSystem.message}`, 'Make the directory.')
      return reserveFileSystem.type === 'tmpfs' || reserveFileSystem.type === 'ramfs'
        ? ok(`${settings.reserve.directory} is on ${reserveFileSystem.type}`)
        : warn(
            `${settings.reserve.directory} is on ${reserveFileSystem.type}: each decision wears the storage out`,
            'Set reserve.directory to a directory on tmpfs, such as /run/tallygate.',
          )
    },
  },
  {
    name: 'database',
    run: ({ database, inspected: { problem, quickCheck }, agent }) => {
      if (database.kind === 'none') {
        return isProblem(agent)
          ? skip('there is no ledger yet')
          : fail(
              `${database.path} is gone under a running agent`,
              'If the agent has its state elsewhere, give doctor the same settings (TALLYGATE_AGENT_STATE_DIRECTORY). Else restart the agent.',
            )
      }
      if (problem?.code === 'LEDGER_UNREADABLE')
        return warn(problem.message, 'Run doctor as root, or as the user of the agent.')
      if (problem !== null)
        return fail(
          problem.message,
          'Keep the file: it may hold usage that is not billed. Restart the agent, which puts it aside.',
        )
      return quickCheck === 'ok'
        ? ok('the quick check of SQLite finds nothing')
        : fail(
            `the quick check says: ${quickCheck ?? 'nothing'}`,
            'Keep the file. Restart the agent: it puts the file aside and delivers what can be proved.',
          )
    },
  },
  {
    name: 'database-permissions',
    run: ({ database, log }) => {
      if (database.kind !== 'file') return skip('there is no ledger yet')
      const open = [database, log].filter(({ kind, mode }) => kind === 'file' && (mode & 0o077) !== 0)
      return open.length === 0
        ? ok(describeFile(database))
        : fail(open.map(describeFile).join(', '), 'chmod 600, or run doctor --fix.')
    },
  },
  {
    name: 'hash-chain',
    run: ({ verification, database }) => {
      if (database.kind === 'none') return skip('there is no ledger yet')
      if (isProblem(verification)) return warn(`not checked: ${verification.message}`, 'See the check of the database.')
      const { findings, checked } = verification
      const [first] = findings
      if (first === undefined)
        return ok(`${checked.entries} entries, ${checked.segments} segments and ${checked.receipts} receipts fit`)
      return fail(
        `${findings.length} findings, the first: ${first.where}: ${first.kind}: ${first.problem}`,
        'Export it (tallygate verify --export) and look for a copied or altered database; nothing of it is deleted.',
      )
    },
  },
  {
    name: 'backup',
    run: ({ backup, isBackupThere, settings, now }) => {
      const { maxAge } = settings.backup
      const remedy = 'Run tallygate backup <file>, by a timer for instance.'
      if (backup === null) {
        return maxAge === 0
          ? skip('none is known, and none is expected (backup.max_age)')
          : warn(`none is known; backup.max_age is ${roughly(maxAge)}`, remedy)
      }
      const age = Math.max(0, now - backup.at)
      const there = isBackupThere ? '' : ', where it is not to be seen at the moment'
      const evidence = `the last one was made ${roughly(age)} ago: ${backup.file}${there}`
      return maxAge > 0 && age > maxAge
        ? warn(`${evidence}; backup.max_age is ${roughly(maxAge)}`, remedy)
        : ok(evidence)
    },
  },
  {
    name: 'schema',
    run: ({ inspected: { schema, knownSchema } }) => {
      if (schema === null) return skip('there is no ledger that can be read')
      if (schema > knownSchema)
        return fail(`schema ${schema}, known up to ${knownSchema}`, 'Install the newer version again.')
      return schema < knownSchema
        ? ok(`schema ${schema}; the next start raises it to ${knownSchema}`)
        : ok(`schema ${schema}`)
    },
  },
  {
    name: 'write-ahead-log',
    run: ({ log, settings }) => {
      if (log.kind !== 'file') return ok('there is none')
      const most = Math.max(64 * MIB, 4 * settings.state.slack)
      return log.size <= most
        ? ok(sizeInWords(log.size))
        : warn(sizeInWords(log.size), 'Free disk space, then restart the agent, or stop it and run doctor --fix.')
    },
  },
  {
    name: 'damaged-ledgers',
    run: ({ inspected: { rescues } }) => {
      const [last] = rescues.slice(-1)
      if (last === undefined) return ok('no ledger was ever put aside')
      const lost = last.lostEntries === null ? 'nobody knows how many' : String(last.lostEntries)
      return warn(
        `${last.file} was put aside (${last.why}); ${last.salvagedEntries} entries saved, ${lost} lost`,
        'Check the disk, keep the file until the cloud has been compared with it, then move it away.',
      )
    },
  },
  {
    name: 'enrollment',
    run: ({ agent, inspected: { identity }, settings }) => {
      const deviceId = isProblem(agent) ? identity?.deviceId : agent.deviceId
      if (deviceId !== null && deviceId !== undefined) return ok(`device ${deviceId}`)
      return settings.enrollment.token === null
        ? fail(
            'not enrolled, and there is no enrollment token',
            'Have an administrator make one: tallygate devices enrollment-token.',
          )
        : warn(
            'not enrolled yet, with a token',
            'Let the device reach the cloud; tallygate status says what is in the way.',
          )
    },
  },
  {
    name: 'key',
    run: ({ key, settings, inspected: { identity } }) => {
      if (key.kind === 'none' && identity === null && settings.device.keyFile === null) {
        return skip('there is none yet: the agent makes it at its first start')
      }
      if (key.kind === 'none')
        return fail(`${key.path} does not exist`, 'Put the key back, or enroll the device again.')
      if (!key.readable) return warn(`${key.path} may not be read by this user`, 'Run doctor as root.')
      // A service manager hands keys over with an access list, which shows as permissions of the group.
      const open = key.kind === 'file' && (key.mode & (settings.device.keyFile === null ? 0o077 : 0o007)) !== 0
      if (open) return fail(describeFile(key), 'chmod 600, or run doctor --fix: whoever reads the key is the device.')
      return key.problem === null
        ? ok(describeFile(key))
        : fail(key.problem.message, 'Put the key back, or enroll the device again.')
    },
  },
  {
    name: 'key-fits',
    run: ({ key: { keyId, nextKeyId }, inspected: { identity }, settings, now }) => {
      if (keyId === null || identity === null) return skip('key or enrollment is not there to compare')
      const { keySince, nextKey = null } = identity
      const age = keySince === undefined ? '' : `, for ${roughly(Math.max(0, now - keySince))}`
      if (keyId === identity.keyId) {
        const wanted = nextKey === null ? '' : `; ${nextKey.id} shall take its place once the cloud is reached`
        return ok(`it is the key of the device: ${keyId}${age}${wanted}`)
      }
      if (nextKeyId === identity.keyId) {
        return settings.device.keyFile === null
          ? warn('a change of the key was cut off', 'Start the agent: it completes it.')
          : ok(`device.next_key_file is the key of the device: ${nextKeyId}${age}`)
      }
      return fail(
        'the device has another key',
        'Put the newest key back, or enroll the device again: the cloud refuses this one.',
      )
    },
  },
  {
    name: 'attachment',
    run: ({ agent, inspected: { state } }) => {
      const incarnation = isProblem(agent) ? Number(state?.['incarnation'] ?? 0) : agent.incarnation
      const fenced = isProblem(agent) ? state?.['fenced'] === 1 : agent.fenced
      if (fenced) {
        return fail(
          `incarnation ${incarnation} is fenced`,
          'Look for a second device with the same state; this one attaches anew by itself once it is online.',
        )
      }
      return incarnation === 0
        ? warn('never attached', 'Let the device reach the cloud.')
        : ok(`incarnation ${incarnation}`)
    },
  },
  {
    name: 'rules',
    run: ({ inspected: { policies, identity }, now }) => {
      if (identity === null) return skip(NOT_ENROLLED)
      const missing = identity.instanceIds.filter((id) => !policies.some(({ instanceId }) => instanceId === id))
      if (missing.length > 0) return fail(`no rules for ${missing.join(', ')}`, 'Let the device reach the cloud.')
      const aged = policies.map(({ instanceId, revision, issuedAt, usableForMs, confirmedAt }) => {
        const until = issuedAt === null || usableForMs === null ? now : Math.max(issuedAt, confirmedAt) + usableForMs
        return { leftMs: until - now, usableForMs: usableForMs ?? 0, says: `revision ${revision} of ${instanceId}` }
      })
      const worst = aged.toSorted((a, b) => a.leftMs - b.leftMs)[0]
      if (worst === undefined) return skip('the device serves no instance')
      if (worst.leftMs <= 0)
        return fail(`${worst.says} may not be used any more`, 'Let the device reach the cloud once.')
      const evidence = `${worst.says} may be used for ${roughly(worst.leftMs)} more without the cloud`
      return worst.leftMs < Math.min(worst.usableForMs / 4, 2 * DAY_MS)
        ? warn(evidence, 'Let the device reach the cloud.')
        : ok(evidence)
    },
  },
  {
    name: 'newest-rules',
    run: ({ agent }) => {
      if (isProblem(agent)) return skip('no agent answers')
      const behind = agent.policies.filter(({ applied, newest }) => newest > applied)
      if (behind.length === 0) return ok('the newest that the cloud has named')
      const says = behind
        .map(({ instanceId, applied, newest }) => `${instanceId}: ${applied} applied, ${newest} exists`)
        .join(', ')
      return warn(says, 'tallygate status names the reason; the rules in force stay until then.')
    },
  },
  {
    name: 'grants',
    run: ({ agent }) => {
      if (isProblem(agent)) return skip('no agent answers')
      if (agent.grant === null) return warn('the device has no grant', 'Let the device reach the cloud.')
      if (agent.grant.remainingMs === 0)
        return fail('the grant has expired', 'Let the device reach the cloud: it charges nothing until then.')
      return tokensLeft(agent)
    },
  },
  {
    name: 'backlog',
    run: ({ agent, inspected: { state } }) => {
      const backlog = isProblem(agent)
        ? Number(state?.['last_entry'] ?? 0) - Number(state?.['acked_entry'] ?? 0)
        : agent.backlog
      if (!isProblem(agent) && agent.connected && backlog > 10_000) {
        return warn(
          `${backlog} entries are not in the cloud, although it is reached`,
          'tallygate logs says what the cloud answers.',
        )
      }
      return ok(`${backlog} entries are not in the cloud yet`)
    },
  },
  {
    name: 'conditions',
    run: ({ agent }) => {
      if (isProblem(agent)) return skip('no agent answers')
      if (agent.conditions.length === 0) return ok('the agent complains of nothing')
      const says = agent.conditions.map(({ subject, code, message }) => `${subject}: ${code}: ${message}`).join('; ')
      const isGrave = agent.conditions.some(({ subject }) => subject === 'ledger')
      const remedies = new Set(agent.conditions.map(({ code }) => remedyOf(code)))
      const [only] = remedies
      const remedy = remedies.size === 1 && only ? only : 'tallygate status says for each what to do.'
      return isGrave ? fail(says, remedy) : warn(says, remedy)
    },
  },
  {
    name: 'clock',
    run: ({ agent, now, signIn }) => {
      if (!isProblem(agent) && agent.clock.latest !== null) {
        const off = now < agent.clock.earliest ? agent.clock.earliest - now : Math.max(0, now - agent.clock.latest)
        const evidence = `the wall clock is ${roughly(off)} off the time that the cloud has signed`
        return off > CLOCK_OFF_MS ? warn(evidence, SET_CLOCK) : ok(evidence)
      }
      const date = signIn === null || isProblem(signIn) ? null : signIn.date
      if (date === null)
        return warn('the wall clock cannot be compared with the cloud', 'Let the device reach the cloud.')
      const off = Math.abs(now - date)
      const evidence = `the wall clock is ${roughly(off)} off the clock of the cloud (not signed)`
      return off > CLOCK_OFF_MS ? warn(evidence, SET_CLOCK) : ok(evidence)
    },
  },
  {
    name: 'time-zone',
    run: ({ timeZone: { name, rules } }) =>
      rules
        ? ok(name)
        : warn(
            `the rules of the time zone ${name} are missing`,
            'Set TZ to a zone that exists, or install tzdata: times are shown in UTC.',
          ),
  },
  { name: 'cloud-name', run: ({ cloud }) => nameOf(cloud, 'fail') },
  {
    name: 'cloud-reachable',
    run: ({ cloud }) => reachable(cloud, 'The device goes on within its grants; check cable, route and firewall.'),
  },
  { name: 'cloud-certificate', run: ({ cloud }) => certificateOf(cloud, 'tls.ca_file') },
  { name: 'cloud-certificate-expiry', run: ({ cloud, now }) => expiryOf(cloud, now) },
  {
    name: 'sign-in',
    run: ({ signIn, version }) => {
      if (signIn === null) return skip('key, enrollment or connection is not there to try')
      if (isProblem(signIn)) return warn(signIn.message, 'See the checks of the cloud.')
      const { status, code, words, twinVersion } = signIn
      if (status === 200 || status === 304) {
        return ok(
          `the cloud takes the device${twinVersion === null ? '' : `; it has version ${twinVersion}, the device ${version}`}`,
        )
      }
      if (status >= 500) return warn(`the cloud answers ${status}`, 'Have its operator look at it.')
      const answer = `the cloud answers ${status} ${code ?? ''}`.trimEnd()
      return fail(words === null ? answer : `${answer}: ${words}`, signInRemedy(code))
    },
  },
  {
    name: 'broker-name',
    run: ({ broker, settings }) => (settings.push.enabled ? nameOf(broker, 'warn') : skip('push.enabled is false')),
  },
  {
    name: 'broker-reachable',
    run: ({ broker, settings }) => {
      if (!settings.push.enabled) return skip('push.enabled is false')
      return reachable(broker, 'Without it, changes are found at the next sync; check address and firewall.')
    },
  },
  { name: 'broker-certificate', run: ({ broker }) => certificateOf(broker, 'tls.ca_file', 'warn') },
  {
    name: 'memory',
    run: ({ memory: { available, total, limit, used } }) => {
      if (limit !== null && limit < MEMORY_MIN) {
        return warn(`the limit is ${sizeInWords(limit)}`, `Raise MemoryMax to ${sizeInWords(MEMORY_MIN)} or more.`)
      }
      if (limit !== null && used !== null && used > 0.9 * limit) {
        return warn(
          `${sizeInWords(used)} of the limit of ${sizeInWords(limit)} is used`,
          'Raise MemoryMax, or look for what grows.',
        )
      }
      if (available === null) return skip('the system does not tell')
      const evidence = `${sizeInWords(available)} of ${sizeInWords(total ?? 0)} available, ${limit === null ? 'no limit' : `limit ${sizeInWords(limit)}`}`
      return available < MEMORY_MIN / 2
        ? warn(evidence, 'Stop what is not needed: the agent may be killed for memory.')
        : ok(evidence)
    },
  },
]

const SET_CLOCK = 'Set the clock (timedatectl set-ntp true), and check the battery of the clock.'

function tokensLeft({ accounts, grant }: AgentStatus): Finding {
  const lines = accounts.filter(({ account }) => account.startsWith('line/'))
  const left = lines.reduce((sum, account) => sum + (room(account) > 0n ? room(account) : 0n), 0n)
  const within = `for ${roughly(grant?.remainingMs ?? 0)} more without the cloud`
  if (lines.some(({ unlimited }) => unlimited)) return ok(`tokens without limit ${within}`)
  return left === 0n
    ? warn(
        `no tokens are left, ${within}`,
        'Let the device reach the cloud; if the pool is used up, more must be bought.',
      )
    : ok(`${formatMicro(left)} tokens are left ${within}`)
}

function nameOf(endpoint: EndpointFacts | null, level: 'warn' | 'fail'): Finding {
  if (endpoint === null) return skip(NOT_ENROLLED)
  const { host, addresses } = endpoint
  if (!isProblem(addresses)) return ok(`${host} is ${addresses.slice(0, 4).join(', ')}`)
  const remedy = 'Check the name server (resolvectl status) and the spelling of the host.'
  return { level, evidence: `${host}: ${addresses.message}`, remedy }
}

function reachable(endpoint: EndpointFacts | null, remedy: string): Finding {
  if (endpoint === null) return skip(NOT_ENROLLED)
  const { host, port, connected } = endpoint
  return isProblem(connected)
    ? warn(`${host}:${port}: ${connected.message}`, remedy)
    : ok(`${host}:${port} answers in ${connected} ms`)
}

function certificateOf(endpoint: EndpointFacts | null, setting: string, level: 'warn' | 'fail' = 'fail'): Finding {
  if (endpoint === null) return skip(NOT_ENROLLED)
  if (!endpoint.secure) {
    const isLocal = /^(localhost|127\.|\[?::1)/.test(endpoint.host)
    const evidence = `${endpoint.url} is not encrypted`
    return isLocal
      ? ok(`${evidence}, and does not leave this machine`)
      : warn(evidence, 'Use TLS: tokens and usage can be read on the way.')
  }
  const { certificate } = endpoint
  if (certificate === null) return skip('nobody answered')
  const evidence = `${certificate.subject}, by ${certificate.issuer}`
  if (certificate.distrust === null) return ok(evidence)
  const remedy = `Correct the certificate, or give its authority in ${setting}; a wrong clock has the same effect.`
  return { level, evidence: `${evidence}: ${certificate.distrust}`, remedy }
}

function expiryOf(endpoint: EndpointFacts | null, now: number): Finding {
  const validTo = endpoint?.certificate?.validTo ?? null
  if (validTo === null) return skip(endpoint === null ? NOT_ENROLLED : 'there is no certificate')
  const left = validTo - now
  const until = new Date(validTo).toISOString()
  if (left <= 0) return fail(`it ended at ${until}`, 'Have it renewed, or set the clock of the device.')
  return left < CERTIFICATE_LEFT_MS ? warn(`it ends at ${until}`, 'Have it renewed.') : ok(`until ${until}`)
}

function unlooked({ message }: Problem): Finding {
  return warn(message, 'Run doctor as root, or as the user of the agent.')
}

function describeFile({ path, mode, uid, kind }: FileFacts): string {
  if (kind === 'none') return `${path} is missing`
  return kind === 'hidden' ? `${path} is hidden` : `${path} (0${mode.toString(8)}, uid ${uid})`
}
