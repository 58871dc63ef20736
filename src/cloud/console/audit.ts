import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { detailInWords } from '../../protocol/edge/audit-detail.ts'
import { nameOf } from '../storage/audit.ts'
import type { AuditRecord } from '../storage/audit-records.ts'
import { deviceIdOf, deviceNames, shortDeviceLink } from './device-names.ts'
import { Inputs } from './inputs.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  exactTimeOf,
  hrefOf,
  instanceField,
  olderLink,
  positionOf,
  refusedForm,
  requireReadable,
  tableOf,
  typed,
} from './page.ts'

export function auditPage(view: View): Promise<Page> {
  return listPage(view).catch((error: unknown) => refusedForm(error, 'Audit', filterForm(view)))
}

async function listPage(view: View): Promise<Page> {
  const { reader, query, instance } = view
  const { before, sessions = '' } = query
  const device = typed(view, 'device')
  const deviceId = await deviceIdOf(view, device)
  if (deviceId !== undefined) {
    const known = await reader.edge.devices.get(deviceId)
    requireReadable(view, known?.instanceIds ?? [], 'The device')
  }
  const filter = {
    deviceId,
    instanceId: deviceId === undefined ? instance?.id : undefined,
    traffic: sessions === 'yes',
    before: positionOf(before),
  }
  const { records, next } = await reader.edge.audit.list(filter, ROWS_SHOWN)
  const on = next === null ? null : hrefOf(view, '/audit', { device, sessions, before: String(next) })
  return {
    title: 'Audit',
    content: section(
      'list',
      deviceId === undefined ? 'Changes, newest first' : `Changes of device ${device}, newest first`,
      html`${filterForm(view)} ${await auditTable(view, records)} ${olderLink(on)}`,
    ),
  }
}

const CHECKED = html`checked`

function filterForm(view: View): Html {
  const { sessions } = view.query
  return html`<form method="get" action="${view.root}/audit">
    ${instanceField(view)} ${new Inputs(view.query).input({ name: 'device', label: 'Device, by name or id' })}
    <label
      ><span
        ><input type="checkbox" name="sessions" value="yes" ${sessions === 'yes' ? CHECKED : ''} /> Sessions that
        clients and devices opened and closed</span
      ></label
    >
    <button>Filter</button>
  </form>`
}

export async function auditTable(view: View, records: readonly AuditRecord[]): Promise<Html> {
  const names = await deviceNames(
    view,
    records.map(({ deviceId }) => deviceId),
  )
  const rows = records.map((record) => [
    exactTimeOf(record.at),
    record.by.kind === 'CLOUD' ? 'the cloud' : `${record.by.kind.toLowerCase()} ${nameOf(record.by)}`,
    record.action.toLowerCase().replaceAll('_', ' '),
    aboutOf(view, record, names),
    detailOf(record.detail),
  ])
  return tableOf('Changes', ['When, UTC', 'Who', 'What', 'About', 'Detail'], rows)
}

function aboutOf(
  view: View,
  { deviceId, lineItemId, sessionId, instanceId }: AuditRecord,
  names: ReadonlyMap<string, string>,
): Html {
  const instance = view.instances.find(({ id }) => id === instanceId)
  const parts = [
    ...(deviceId === null ? [] : [shortDeviceLink(view, deviceId, names)]),
    ...(lineItemId === null ? [] : [html`line item ${lineItemId} `]),
    ...(sessionId === null ? [] : [html`session ${sessionId.slice(0, 8)} `]),
    ...(instanceId === null ? [] : [html`instance ${instance?.shortName ?? instanceId.slice(0, 8)} `]),
  ]
  return html`${parts}`
}

const DETAIL_LENGTH_MAX = 300

function detailOf(detail: string | null): string {
  const text = detail === null ? '' : detailInWords(detail)
  return text.length > DETAIL_LENGTH_MAX ? `${text.slice(0, DETAIL_LENGTH_MAX)} …` : text
}
