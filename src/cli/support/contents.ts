/**
 * Files of a support bundle. They contain only text that Tallygate writes, and no entries, keys or tokens. The settings file is not
 * among them: its comments may contain anything. Every file passes the redactor.
 */
import { arch, platform, release, uptime } from 'node:os'
import { agentOptions, type AgentSettings } from '../../agent/settings.ts'
import { healthStatusOf } from '../../agent/diagnostics/health-status.ts'
import { CodedError } from '../../protocol/errors.ts'
import { AGENT_STATUS_PATH, type AgentStatusWire } from '../../protocol/local/status.ts'
import { Secret, namedOptions, valueAt } from '../../settings/option.ts'
import { z } from 'zod'
import { type SocketFlags, agentClient, namedSocket } from '../local-agent.ts'
import { type Observations, isProblem } from '../doctor/observations.ts'
import { examine } from '../doctor/checks.ts'
import type { Io } from '../io.ts'
import { linesText } from '../lines.ts'
import { USUAL_UNIT, journalLines, rememberedLines } from '../log-lines.ts'
import { isKnown } from './known-lines.ts'
import { redactor } from './redact.ts'
import type { PackedFile } from './tar.ts'
import { fileText } from '../../platform/file-text.ts'

/** Maximum text per file; the beginning of longer text is omitted. */
const TEXT_MAX = 2_000_000

const LOG_LINES = 5_000

export async function contents(observations: Observations, flags: SocketFlags, io: Io): Promise<readonly PackedFile[]> {
  const { settings, inspected } = observations
  const [report, log] = await Promise.all([reportOf(flags, io), logOf(flags, io)])
  const files: PackedFile[] = [
    { name: 'README.txt', text: README },
    { name: 'report.json', text: jsonOf(report) },
    { name: 'doctor.json', text: jsonOf(examine(observations)) },
    { name: 'versions.json', text: jsonOf(versionsOf(observations)) },
    { name: 'settings.json', text: jsonOf(settingsOf(settings)) },
    { name: 'environment.json', text: jsonOf(environmentOf(io)) },
    { name: 'log.ndjson', text: log },
    { name: 'schema.sql', text: inspected.tables === null ? '' : `${inspected.tables};\n` },
    { name: 'ledger.json', text: jsonOf(ledgerOf(observations)) },
  ]
  const clean = redactor(secretsOf(observations))
  return files.map(({ name, text }) => ({ name: `tallygate-support/${name}`, text: clean(text).slice(-TEXT_MAX) }))
}

/** Whether this user lacks the rights for the agent's status and log, or for its ledger. */
export function isPartial({ agent, database }: Observations): boolean {
  const isHidden = database.kind === 'hidden' || (database.kind === 'file' && !database.readable)
  return isHidden || (isProblem(agent) && agent.code === 'SOCKET_NOT_PERMITTED')
}

const README = `A support bundle of a Tallygate device.

report.json       status of the agent, or why it does not respond
doctor.json       result of tallygate doctor
versions.json     versions of the software and of the system
settings.json     settings in force, without secrets
environment.json  names of environment variables for settings, without values
log.ndjson        last log lines of the agent, of systemd about it, and of crashes
schema.sql        tables of the ledger
ledger.json       heads, counts, rules and damaged ledgers; no entries

No file contains keys, tokens or passwords. report.json contains names of line items, and of requesters with a consumption limit.
`

async function reportOf(flags: SocketFlags, io: Io): Promise<unknown> {
  try {
    using client = agentClient(flags, io)
    const status = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, z.unknown())
    return { health: healthStatusOf(status as AgentStatusWire), status }
  } catch (error) {
    if (error instanceof CodedError) return { problem: { code: error.code, message: error.message } }
    return { problem: { code: 'INTERNAL', message: String(error) } }
  }
}

async function logOf(flags: SocketFlags, io: Io): Promise<string> {
  const lines = await logLines(flags, io)
  return linesText(lines.map((line, at) => (isKnown(line, lines[at + 1]) ? line : '[a line of another program]')))
}

/** An agent with a named socket may be another one than the service. */
async function logLines(flags: SocketFlags, io: Io): Promise<readonly string[]> {
  const named = namedSocket(flags, io) === undefined ? null : await linesOfAgent(flags, io)
  if (named !== null && named.length > 0) return named
  return (await journalLines(USUAL_UNIT, LOG_LINES, io)) ?? named ?? (await linesOfAgent(flags, io))
}

async function linesOfAgent(flags: SocketFlags, io: Io): Promise<readonly string[]> {
  try {
    using client = agentClient(flags, io)
    return (await rememberedLines(client)).slice(-LOG_LINES)
  } catch {
    return []
  }
}

function versionsOf({ version, node, sqlite, timeZone, now }: Observations): unknown {
  return {
    made: new Date(now).toISOString(),
    tallygate: version,
    node: node.version,
    sqlite,
    components: process.versions,
    system: { platform: platform(), arch: arch(), release: release(), upForSeconds: Math.floor(uptime()) },
    distribution: /^PRETTY_NAME="?([^"\n]*)/m.exec(fileText('/etc/os-release') ?? '')?.[1] ?? null,
    timeZone: timeZone.name,
  }
}

/** By key, as in the documentation; for a secret only whether it is set. */
function settingsOf(settings: AgentSettings): unknown {
  return Object.fromEntries(
    namedOptions(agentOptions).map(({ key, path }) => {
      const value = valueAt(settings, path)
      return [key, value instanceof Secret ? '[secret]' : value]
    }),
  )
}

function environmentOf({ env }: Io): readonly string[] {
  return Object.keys(env)
    .filter((name) => name.startsWith('TALLYGATE_') || name === 'TZ' || name === 'TMPDIR')
    .sort()
}

function ledgerOf({ inspected, verification, database, log, diskReserve }: Observations): unknown {
  const { problem, quickCheck, schema, state, policies, salvages, identity } = inspected
  const about = identity === null ? null : { ...identity, trustedKeys: identity.trustedKeys.length }
  const files = [database, log, diskReserve].map(({ path, size, mode, uid, kind }) => ({ path, size, mode, uid, kind }))
  return { problem, quickCheck, schema, files, identity: about, state, policies, salvages, verification }
}

function secretsOf({ settings, key, configuration }: Observations): readonly string[] {
  const set = namedOptions(agentOptions).flatMap(({ path }) => {
    const value = valueAt(settings, path)
    return value instanceof Secret ? [value.reveal()] : []
  })
  const [, ...secretFiles] = configuration.file === null ? [null, ...configuration.files] : configuration.files
  const paths = [key.path, ...secretFiles.flatMap((file) => (file === null ? [] : [file.path]))]
  return [...set, ...paths.map((path) => fileText(path) ?? '')]
}

function jsonOf(value: unknown): string {
  return `${JSON.stringify(value, (_key, part: unknown) => (typeof part === 'bigint' ? String(part) : part), 2)}\n`
}
