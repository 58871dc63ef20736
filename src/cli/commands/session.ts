/** Exit code 1 if a request is refused or the session accepts no more requests. */
import { Command } from 'commander'
import type { z } from 'zod'
import { SESSIONS_SHOWN_MAX, liveSessions, session, sessionCreated } from '../../protocol/service/sessions.ts'
import {
  agentClient,
  instanceInWords,
  instanceNames,
  localInstance,
  patient,
  type SocketFlags,
  withInstanceOption,
  withSocketFlag,
} from '../local-agent.ts'
import { showAccessAnswer } from '../access-answer.ts'
import { uuidArgument } from '../arguments.ts'
import { columns, jsonLine, table, writeLines } from '../lines.ts'
import { type ListFlags, endText, widthFor, withListOptions } from '../lists.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { itemRequestBody, type ItemRequestFlags, withItemRequest } from '../item-request.ts'

interface OpenFlags extends SocketFlags {
  readonly instance?: string
}

interface RequestFlags extends SocketFlags, ItemRequestFlags {
  readonly item?: string
  readonly endOnDeny?: true
}

const SESSIONS = '/api/v1.1/sessions'

export function command(io: Io): Command {
  const group = new Command('session').description('Manages sessions of the agent of this device.')
  const ofSession = (name: string): Command =>
    withSocketFlag(group.command(name).argument('<id>', 'session', uuidArgument))
  withInstanceOption(withJson(withSocketFlag(group.command('open'))))
    .description('Opens a session and prints its id. It costs nothing until you request an item.')
    .action(async (flags: OpenFlags) => {
      using client = agentClient(flags, io)
      const body = { instanceId: await localInstance(client, flags.instance) }
      const created = await client.json({ method: 'POST', path: SESSIONS, body }, sessionCreated)
      io.stdout.write(`${flags.json === true ? jsonLine(created) : created.sessionId}\n`)
    })
  withListOptions(withSocketFlag(group.command('list')))
    .description('Lists the live sessions that the caller can see, newest first.')
    .action((flags: SocketFlags & ListFlags) => list(flags, io))
  withJson(ofSession('show'))
    .description('Shows the state of a session.')
    .action((id: string, flags: SocketFlags) => show(id, flags, io))
  const request = withJson(ofSession('request'))
    .description(
      "Requests an item in place of the session's current item. Without --item, the session releases its item and stays open.",
    )
    .option('--item <name>', 'item to request')
  withItemRequest(request)
    .option('--end-on-deny', 'end the session if the request is refused')
    .action((id: string, flags: RequestFlags) => requestInSession(id, flags, io))
  ofSession('heartbeat')
    .description('Sends a heartbeat for a session.')
    .action(async (id: string, flags: SocketFlags) => {
      using client = agentClient(flags, io)
      await client.text(await patient(client, { method: 'GET', path: `${SESSIONS}/${id}/heartbeat` }))
    })
  ofSession('close')
    .description('Ends a session and returns its unused tokens.')
    .action(async (id: string, flags: SocketFlags) => {
      using client = agentClient(flags, io)
      await client.text(await patient(client, { method: 'DELETE', path: `${SESSIONS}/${id}` }))
    })
  return examples(group, [
    'session=$(tallygate session open)',
    'tallygate session request "$session" --item LaserCut --item-version 1.0 --requester user:anna',
    'tallygate session heartbeat "$session"',
    'tallygate session list --json',
    'tallygate session close "$session"',
  ])
}

function rowsOf(
  { sessionId, instanceId, state, items }: z.infer<typeof session>,
  listed: z.infer<typeof liveSessions>[number] | undefined,
  names: ReadonlyMap<string, string | null>,
): readonly (readonly string[])[] {
  const instant = (at: number): string => (at === 0 ? 'never' : new Date(at).toISOString())
  return [
    ['session', sessionId],
    ['instance', instanceInWords({ instanceId, name: names.get(instanceId) ?? null })],
    ['state', state],
    ...items.map(({ item, version, count }) => [
      'pays for',
      `${count} ${item}${version === undefined ? '' : ` ${version}`}`,
    ]),
    ...(listed === undefined
      ? []
      : [
          ['charged until', instant(listed.chargedUntil)],
          ['last heartbeat', instant(listed.lastHeartBeat)],
          ['last request', instant(listed.lastAccessRequest)],
        ]),
  ]
}

function withJson(command: Command): Command {
  return command.option('--json', 'print one JSON document per line')
}

async function list(flags: SocketFlags & ListFlags, io: Io): Promise<void> {
  using client = agentClient(flags, io)
  const sessions = await client.json({ method: 'GET', path: SESSIONS }, liveSessions)
  if (sessions.length === SESSIONS_SHOWN_MAX) io.stderr.write(endText(sessions.length, 'sessions'))
  if (flags.json === true) {
    writeLines(io.stdout, sessions.map(jsonLine))
    return
  }
  const names = await instanceNames(client)
  const rows = sessions.map(({ sessionId, state, chargedUntil, instanceId }) => [
    sessionId,
    state,
    chargedUntil === 0 ? '-' : new Date(chargedUntil).toISOString(),
    instanceInWords({ instanceId, name: names.get(instanceId) ?? null }),
  ])
  const head = ['SESSION', 'STATE', 'CHARGED UNTIL', 'INSTANCE']
  writeLines(io.stdout, table(head, rows, 'No live sessions.', widthFor(flags, io)))
}

async function show(id: string, flags: SocketFlags, io: Io): Promise<void> {
  using client = agentClient(flags, io)
  const shown = await client.json({ method: 'GET', path: `${SESSIONS}/${id}` }, session)
  if (flags.json === true) {
    writeLines(io.stdout, [jsonLine(shown)])
    return
  }
  const live = await client.json({ method: 'GET', path: SESSIONS }, liveSessions)
  const listed = live.find(({ sessionId }) => sessionId === shown.sessionId)
  writeLines(io.stdout, columns(rowsOf(shown, listed, await instanceNames(client))))
}

async function requestInSession(id: string, flags: RequestFlags, io: Io): Promise<void> {
  using client = agentClient(flags, io)
  const call = {
    method: 'PUT',
    path: `${SESSIONS}/${id}`,
    body: { ...itemRequestBody(flags.item, flags), rollbackOnDeny: flags.endOnDeny !== true },
  } as const
  showAccessAnswer(call, await client.call(await patient(client, call)), flags, io)
}
