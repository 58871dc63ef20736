import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import type { DeviceStateWire } from '../../protocol/edge/administration.ts'
import { reportedState } from '../devices/devices.ts'
import { CONTACTS, type Contact, type Device } from '../storage/device-records.ts'
import { commandChoice, mayCommand } from './device-commands.ts'
import { deviceFilterOf } from './device-filter.ts'
import { Inputs } from './inputs.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  hrefOf,
  instanceField,
  numeric,
  offsetOf,
  pagesByOffset,
  refusedForm,
  tableOf,
  timeOf,
} from './page.ts'

export const CONTACT_TEXT: Readonly<Record<Contact, string>> = {
  CURRENT: 'in contact',
  OVERDUE: 'overdue',
  NEVER: 'never synced',
  SUSPENDED: 'locked or terminated',
  REVOKED: 'revoked',
}

export function devicesPage(view: View): Promise<Page> {
  return listPage(view).catch((error: unknown) => refusedForm(error, 'Devices', filterForm(view)))
}

async function listPage(view: View): Promise<Page> {
  const { reader, query, now, root } = view
  const choice = deviceFilterOf(view)
  const { contact, search, labels, filter } = choice
  const offset = offsetOf(query['from'])
  const canCommand = mayCommand(view)
  const found = await reader.edge.devices.find(filter, offset, ROWS_SHOWN + 1)
  const rows = []
  for (const device of found.slice(0, ROWS_SHOWN)) {
    const state = await reportedState(view, device)
    rows.push([
      canCommand ? html`${selectBox(device)} ${deviceLink(view, device)}` : deviceLink(view, device),
      stateInWords(state),
      timeOf(state.lastSyncAt, now),
      state.presence === null ? 'unknown' : state.presence.online ? 'connected' : 'not connected',
      rulesInWords(state.policies),
      String(state.backlog),
      state.software ?? 'unknown',
      labelLinks(view, device),
    ])
  }
  const chosen = { search, contact: contact ?? '', labels }
  const isFirst = offset === 0 && Object.values(chosen).join('') === ''
  const columns = ['Device', 'State', 'Last sync', 'Live updates', 'Rules', numeric('Backlog'), 'Software', 'Labels']
  return {
    title: 'Devices',
    content: section(
      'list',
      search === '' ? 'In order of enrollment' : `Whose id or name begins with “${search}”`,
      html`${filterForm(view)}
      ${
        canCommand && rows.length > 0
          ? html`<form class="bulk" method="get" action="${root}/devices/command">
              ${tableOf('Devices', columns, rows)} ${commandChoice(view, choice)}
            </form>`
          : tableOf('Devices', columns, rows)
      }
      ${rows.length > 0 ? exportLinks(view, chosen) : isFirst ? ENROLL : ''}
      ${pagesByOffset(view, '/devices', { query: chosen, isMore: found.length > ROWS_SHOWN })}`,
    ),
  }
}

const ENROLL = html`<p>
  Enroll one with a token of <code>tallygate devices enrollment-token --name NAME</code>, or many with
  <code>tallygate devices provision</code>.
</p>`

function filterForm(view: View): Html {
  const inputs = new Inputs(view.query)
  return html`<form method="get" action="${view.root}/devices">
    ${instanceField(view)} ${inputs.input({ name: 'search', label: 'Start of the name or id' }, html`type="search"`)}
    ${inputs.input({ name: 'labels', label: 'Labels, such as site=berlin' })}
    ${inputs.select({ name: 'contact', label: 'Contact' }, [
      ['', 'all'],
      ...CONTACTS.map((each) => [each, CONTACT_TEXT[each]] as const),
    ])}
    <button>Search</button>
  </form>`
}

function exportLinks(view: View, chosen: Readonly<Record<string, string>>): Html {
  const link = (format: string): Html =>
    html`<a href="${hrefOf(view, `/devices.${format}`, chosen)}" download>${format.toUpperCase()}</a>`
  return html`<p>Export all that this list finds: ${link('csv')} ${link('json')}</p>`
}

function selectBox({ id, name }: { readonly id: string; readonly name: string | null }): Html {
  return html`<input type="checkbox" name="device" value="${id}" aria-label="Select ${name ?? id}" />`
}

export function deviceLink(view: View, { id, name }: { readonly id: string; readonly name: string | null }): Html {
  return html`<a href="${hrefOf(view, `/devices/${id}`)}">${name ?? 'without a name'}</a> <br /><code>${id}</code>`
}

export function labelLinks(view: View, { labels }: Pick<Device, 'labels'>): Html {
  const all = Object.entries(labels).map(([key, value]) => `${key}=${value}`)
  return html`${all.map((each) => html`<a href="${hrefOf(view, '/devices', { labels: each })}">${each}</a> `)}`
}

export function stateInWords({
  revokedAt,
  suspension,
  forked,
  overdue,
  status,
}: Pick<
  Awaited<ReturnType<typeof reportedState>>,
  'revokedAt' | 'suspension' | 'forked' | 'overdue' | 'status'
>): string {
  const state =
    revokedAt !== null ? 'revoked' : suspension !== null ? suspension.state.toLowerCase() : STATUS_TEXT[status]
  return `${state}${overdue ? ', overdue' : ''}${forked ? ', copied' : ''}`
}

function rulesInWords(policies: DeviceStateWire['policies']): string {
  if (policies.every(({ applied }) => applied === 0)) return 'none yet'
  return policies.some(({ applied, newest }) => newest > applied) ? 'older than the newest' : 'up to date'
}

const STATUS_TEXT = {
  NONE: 'enrolled, never attached',
  ACTIVE: 'active',
  FENCED: 'fenced: gets no tokens until it attaches again',
  CLOSED: 'closed: attaches again',
} as const
