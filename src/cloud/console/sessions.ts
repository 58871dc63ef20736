import type { Session } from '../../core/sessions/session.ts'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { requireSession } from '../storage/require-record.ts'
import { mayCommand } from './device-commands.ts'
import { deviceLink } from './devices.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  confirmation,
  formTokenField,
  hrefOf,
  nameOfInstance,
  olderLink,
  positionOf,
  requireReadable,
  rowsOf,
  tableOf,
  timeOf,
} from './page.ts'

export const SESSION_COMMANDS = {
  lock: { command: 'LOCK', verb: 'Lock', effect: 'It accepts no requests until it is unlocked.' },
  unlock: { command: 'UNLOCK', verb: 'Unlock', effect: 'It accepts requests again.' },
  end: {
    command: 'TERMINATE',
    verb: 'End',
    effect: 'Charges for unused time are refunded. It cannot be opened again.',
  },
} as const

export type SessionCommandName = keyof typeof SESSION_COMMANDS

type Listed = readonly { readonly number: bigint; readonly session: Session }[]

export async function sessionsPage(view: View): Promise<Page> {
  const filter = { instanceId: view.instance?.id, before: positionOf(view.query['before']) }
  const found = await view.reader.sessions.page(filter, ROWS_SHOWN + 1)
  const shown = found.slice(0, ROWS_SHOWN)
  const on =
    found.length > ROWS_SHOWN ? hrefOf(view, '/sessions', { before: String(shown.at(-1)?.number ?? 0n) }) : null
  return {
    title: 'Sessions',
    content: section(
      'list',
      'Sessions that have not ended, newest first',
      html`${await sessionsTable(view, shown)} ${olderLink(on)}`,
    ),
  }
}

export async function sessionsTable(view: View, sessions: Listed): Promise<Html> {
  const rows = []
  for (const { session } of sessions) {
    const { id, instanceId, state, requester, created, lastAccessRequest } = session
    const possible: readonly SessionCommandName[] = state === 'LOCKED' ? ['unlock', 'end'] : ['lock', 'end']
    const commands = mayCommand(view, [instanceId]) ? possible : []
    rows.push([
      html`<code>${id}</code>`,
      state.toLowerCase(),
      await openedBy(view, session),
      requester === null ? 'none yet' : `${requester.type} ${requester.value}`,
      timeOf(created, view.now),
      lastAccessRequest === 0 ? 'never' : timeOf(lastAccessRequest, view.now),
      html`${commands.map(
        (name) =>
          html`<a
            href="${hrefOf(view, `/sessions/${id}/${name}`)}"
            aria-label="${SESSION_COMMANDS[name].verb} session ${id}"
            >${SESSION_COMMANDS[name].verb}</a
          > `,
      )}`,
    ])
  }
  return tableOf('Sessions', ['Session', 'State', 'Opened by', 'Requester', 'Opened', 'Last request', 'Commands'], rows)
}

async function openedBy(view: View, session: Session): Promise<Html> {
  const deviceId = session.keptBy ?? session.deviceId
  if (deviceId === null) return html`a client of the cloud`
  const device = await view.reader.edge.devices.get(deviceId)
  return deviceLink(view, { id: deviceId, name: device?.name ?? null })
}

export async function confirmPage(view: View, name: SessionCommandName): Promise<Page> {
  const { verb, effect } = SESSION_COMMANDS[name]
  const session = await requireSession(view.reader, (view.params['sessionId'] ?? '').toLowerCase())
  requireReadable(view, [session.instanceId], 'The session')
  const instance = await view.reader.instances.get(session.instanceId)
  const rows = [
    ['State', session.state.toLowerCase()],
    ['Opened by', await openedBy(view, session)],
    ['Instance', instance === undefined ? session.instanceId : nameOfInstance(instance)],
  ] as const
  return {
    title: `${verb} session ${session.id}?`,
    content: section(
      'confirm',
      effect,
      html`${rowsOf(rows)}
        <form method="post" action="${hrefOf(view, `/sessions/${session.id}/${name}`)}">
          ${formTokenField(view)} ${confirmation('Yes, do this')}
          <button class="danger">${verb} the session</button>
          <a href="${hrefOf(view, '/sessions')}">Cancel</a>
        </form>`,
    ),
  }
}
