/** Who changed what, newest first. */
import { type Html, html } from '../../html/html.ts'
import { uuid } from '../../protocol/wire.ts'
import { nameOf } from '../storage/audit.ts'
import type { AuditRecord } from '../storage/audit-records.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  hrefOf,
  olderLink,
  requireReadable,
  section,
  tableOf,
  timeOf,
} from './page.ts'

export async function auditPage(view: View): Promise<Page> {
  const { reader, query, instance, root } = view
  const { device = '', before = '', sessions = '' } = query
  const deviceId = uuid.toLowerCase().safeParse(device).data
  if (deviceId !== undefined) {
    const known = await reader.edge.devices.get(deviceId)
    requireReadable(view, known?.instanceIds ?? [], 'The device')
  }
  const filter = {
    deviceId,
    instanceId: deviceId === undefined ? instance?.id : undefined,
    traffic: sessions === 'yes',
    before: /^\d{1,18}$/.test(before) ? BigInt(before) : undefined,
  }
  const { records, next } = await reader.edge.audit.list(filter, ROWS_SHOWN)
  const on = next === null ? null : hrefOf(view, '/audit', { device, sessions, before: String(next) })
  return {
    title: 'Audit',
    content: section(
      'list',
      deviceId === undefined ? 'Changes, newest first' : `Changes of device ${deviceId}, newest first`,
      html`<form method="get" action="${root}/audit">
          ${instance === null ? '' : html`<input type="hidden" name="instance" value="${instance.id}" />`}
          <label>Id of a device <input name="device" value="${device}" /></label>
          <label
            ><span
              ><input type="checkbox" name="sessions" value="yes" ${sessions === 'yes' ? CHECKED : ''} /> Sessions that
              clients and devices opened and closed</span
            ></label
          >
          <button>Filter</button>
        </form>
        ${auditTable(view, records)} ${olderLink(on)}`,
    ),
  }
}

const CHECKED = html`checked`

export function auditTable(view: View, records: readonly AuditRecord[]): Html {
  const rows = records.map((record) => [
    timeOf(record.at, view.now),
    record.by.kind === 'CLOUD' ? 'the cloud' : `${record.by.kind.toLowerCase()} ${nameOf(record.by)}`,
    record.action.toLowerCase().replaceAll('_', ' '),
    aboutOf(view, record),
    detailOf(record.detail),
  ])
  return tableOf('Changes', ['When', 'Who', 'What', 'About', 'Detail'], rows)
}

function aboutOf(view: View, { deviceId, lineItemId, sessionId, instanceId }: AuditRecord): Html {
  const parts = [
    ...(deviceId === null
      ? []
      : [html`<a href="${hrefOf(view, `/devices/${deviceId}`)}">device ${deviceId.slice(0, 8)}</a> `]),
    ...(lineItemId === null ? [] : [html`line item ${lineItemId} `]),
    ...(sessionId === null ? [] : [html`session ${sessionId.slice(0, 8)} `]),
    ...(instanceId === null ? [] : [html`instance ${instanceId.slice(0, 8)} `]),
  ]
  return html`${parts}`
}

const DETAIL_LENGTH_MAX = 300

function detailOf(detail: string | null): Html {
  if (detail === null) return html``
  return html`<code>${detail.length > DETAIL_LENGTH_MAX ? `${detail.slice(0, DETAIL_LENGTH_MAX)} …` : detail}</code>`
}
