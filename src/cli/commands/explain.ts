import { Command } from 'commander'
import type { RecordedEntry } from '../../agent/ledger/journal.ts'
import { findInLedger } from '../../agent/platform/sqlite/read-ledger.ts'
import { type Explanation, type Check, explain } from '../../agent/diagnostics/explain.ts'
import { CodedError, ERRORS } from '../../protocol/errors.ts'
import { AGENT_DECISIONS_PATH, type KeptDecision, keptDecision } from '../../protocol/local/decision.ts'
import {
  agentClient,
  agentDatabase,
  instanceInWords,
  namedSocket,
  patient,
  type SocketFlags,
  withSocketFlag,
} from '../local-agent.ts'
import { inDatabaseProcess } from '../in-database-process.ts'
import { columns, jsonLine, writeLines } from '../lines.ts'
import type { Io } from '../io.ts'

interface ExplainFlags extends SocketFlags {
  readonly db?: string
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

const CODE_OF_REPLAY = new Map<Explanation['replay']['result'], 'DECISION_DIFFERS' | 'ENGINE_DIFFERS'>([
  ['different', 'DECISION_DIFFERS'],
  ['other-engine', 'ENGINE_DIFFERS'],
])

export function command(io: Io): Command {
  return withSocketFlag(new Command('explain'))
    .description(
      'Shows why a request was granted or refused: every check with its evidence, replayed with the original rules and inputs. Exit code 65 if the replay gives a different result, 69 if another version of the engine decided and nothing is compared.',
    )
    .argument('<correlation-id>', 'correlationId of the response, or header x-tallygate-correlation-id of a refusal')
    .option('--db <path>', 'database of a stopped agent; opened read-only')
    .option('--json', 'print one JSON document')
    .action(async (id: string, flags: ExplainFlags) => {
      const correlationId = id.toLowerCase()
      if (!UUID.test(correlationId)) {
        throw new CodedError('USAGE', `${id} is not a correlation id. Use the UUID from the response.`)
      }
      if (flags.db !== undefined && flags.socket !== undefined)
        throw new CodedError('USAGE', 'Give --db or --socket, not both.')
      const explanation = await explain(await keptBy(correlationId, flags, io))
      writeLines(io.stdout, flags.json === true ? [jsonLine(explanation)] : describe(explanation))
      const code = CODE_OF_REPLAY.get(explanation.replay.result)
      if (code === undefined) return
      io.exitWith(ERRORS[code].exit)
      if (flags.json !== true) io.stderr.write(`tallygate: ${code}: ${ERRORS[code].remedy}\n`)
    })
}

/** Asks the agent; falls back to its database if the agent does not run. */
async function keptBy(correlationId: string, flags: ExplainFlags, io: Io): Promise<KeptDecision> {
  if (flags.db !== undefined) return keptIn(flags.db, correlationId)
  try {
    using client = agentClient(flags, io)
    const call = { method: 'GET', path: `${AGENT_DECISIONS_PATH}${correlationId}` } as const
    return await client.json(await patient(client, call), keptDecision)
  } catch (error) {
    const isAlone = error instanceof CodedError && error.code === 'AGENT_UNREACHABLE'
    if (!isAlone || namedSocket(flags, io) !== undefined) throw error
    return keptIn(agentDatabase(undefined, io), correlationId).catch((other: unknown) => {
      throw other instanceof CodedError && other.code === 'LEDGER_UNREADABLE' ? error : other
    })
  }
}

async function keptIn(path: string, correlationId: string): Promise<KeptDecision> {
  const found = await findInLedger(path, correlationId, (search) => inDatabaseProcess<RecordedEntry | null>({ search }))
  if (found !== null) return { kind: 'entry', ...found }
  throw new CodedError('DECISION_UNKNOWN', `${path} does not contain decision ${correlationId}.`)
}

function describe(explanation: Explanation): readonly string[] {
  const { kind, requester, session, items, checkOrder, accounts, replay, answer } = explanation
  const dictionary = requester?.dictionary ?? null
  const sections = [
    columns(factsOf(explanation)),
    checkOrder.length === 0 ? [] : [kind === 'refusal' ? 'Checks' : 'Checks of the device', ...checks(checkOrder)],
    ...items.map(itemLines),
    accounts.length === 0 ? [] : ['Available balance at that moment', ...columns(accounts.map(accountRow))],
    dictionary === null ? [] : [`Dictionary of the requester: ${JSON.stringify(dictionary)}`],
    session === null ? [] : [`In session ${session.id}: ${session.event}`],
    answer === null ? [] : [`Answer: ${answer}`],
    [`Replay: ${replay.result}. ${replay.says}`],
  ]
  return sections.filter((lines) => lines.length > 0).flatMap((lines, index) => (index === 0 ? lines : ['', ...lines]))
}

function itemLines({ item, version, count, outcome, tokens, checkOrder }: Explanation['items'][number]) {
  const called = version === '' ? item : `${item} ${version}`
  return [`${count} of ${called}: ${outcome}, ${tokens} tokens`, ...checks(checkOrder)]
}

function accountRow({ account, left, expired, beyondGrant }: Explanation['accounts'][number]): readonly string[] {
  const notes = [
    ...(expired ? ['the grant has expired'] : []),
    ...(beyondGrant === null ? [] : [`and ${beyondGrant} above the grant`]),
  ]
  return [`  ${account}`, left, notes.join(', ')]
}

function factsOf(explanation: Explanation) {
  const { correlationId, kind, clock, instanceId, instanceName: name, requester, engine, entry } = explanation
  const rows: (readonly string[])[] = [[kind, correlationId]]
  const at = new Date(clock.now).toISOString()
  const sure = clock.earliest === null ? '' : `, certainly after ${new Date(clock.earliest).toISOString()}`
  const bound = clock.latest === null ? '' : ` and before ${new Date(clock.latest).toISOString()}`
  rows.push(['at', `${at}${sure}${bound}`])
  if (requester !== null) rows.push(['requester', `${requester.type} ${requester.value}`])
  if (instanceId !== null)
    rows.push([
      'rules',
      `revision ${explanation.policyRevision ?? 0} of instance ${instanceInWords({ instanceId, name })}`,
    ])
  if (engine !== null) rows.push(['engine', String(engine)])
  if (entry !== null) rows.push(['entry', String(entry)])
  return rows
}

function checks(checkOrder: readonly Check[]): readonly string[] {
  return checkOrder.flatMap(({ code, asks, passed, evidence }) => {
    const mark = passed === null ? '  -   ' : passed ? '  ok  ' : '  NO  '
    const reason = passed === false ? ` (${code})` : ''
    return [`${mark}${asks}${reason}`, ...evidence.map((each) => `        ${each}`)]
  })
}
