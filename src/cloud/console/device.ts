import { type AccountId, parseAccount } from '../../core/accounts/account.ts'
import { available, billed } from '../../core/accounts/grant.ts'
import { accountInWords, counted, roughly, tokensInWords } from '../../core/accounts/in-words.ts'
import { actionNameOf } from '../../core/rules/action-name.ts'
import type { Policy } from '../../core/rules/policy.ts'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import type { z } from 'zod'
import { type labelChange, labelsIn, labelsText } from '../../protocol/edge/labels.ts'
import { reportedState } from '../devices/devices.ts'
import { auditTable } from './audit.ts'
import { commandRows, mayCommand } from './device-commands.ts'
import type { Device } from '../storage/device-records.ts'
import { requireDevice } from '../storage/require-record.ts'
import { evidencePart } from './evidence.ts'
import { labelLinks, stateInWords } from './devices.ts'
import { Inputs } from './inputs.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  formTokenField,
  hrefOf,
  numeric,
  refusedForm,
  requireReadable,
  rowsOf,
  tableOf,
  timeOf,
} from './page.ts'
import { sessionsTable } from './sessions.ts'

const AUDIT_SHOWN = 10

export async function devicePage(view: View): Promise<Page> {
  const { reader, params } = view
  const device = await requireDevice(reader, (params['deviceId'] ?? '').toLowerCase())
  requireReadable(view, device.instanceIds, 'The device')
  const state = await reportedState(view, device)
  const accounts = await reader.edge.deviceAccounts.someOfEpoch(device.id, device.epoch, ROWS_SHOWN)
  const names = await actionNamesByAccount(
    view,
    accounts.map(({ account }) => account),
  )
  const grants = accounts.map((record) => [
    accountInWords(record.account, names.get(record.account)),
    record.unlimited ? 'unlimited' : tokensInWords(available(record)),
    tokensInWords(billed(record)),
    tokensInWords(record.granted),
  ])
  const sessions = await reader.sessions.page({ deviceId: device.id }, ROWS_SHOWN)
  const keys = (await reader.edge.devices.keysOf(device, ROWS_SHOWN)).map(
    ({ thumbprint, state: use, registeredAt }) => [
      html`<code>${thumbprint}</code>`,
      KEY_TEXT[use],
      timeOf(registeredAt, view.now),
    ],
  )
  const audit = await reader.edge.audit.list({ deviceId: device.id }, AUDIT_SHOWN)
  return {
    title: device.name ?? device.id,
    content: html`${section(
      'state',
      'State',
      rowsOf([...stateRows(view, state), ...(mayCommand(view, device.instanceIds) ? commandRows(view, device) : [])]),
    )}
    ${section('labels', 'Labels', labelsPart(view, device))}
    ${section(
      'grants',
      'Tokens on the device',
      html`${tableOf('Tokens on the device', ['Account', numeric('Left'), numeric('Used'), numeric('Granted')], grants)}
        <p class="soft">As of its last sync, in epoch ${device.epoch}.</p>`,
    )}
    ${section('usage', 'Usage', usageLinks(view, device))}
    ${section('sessions', 'Sessions', await sessionsTable(view, sessions))} ${await evidencePart(view, device)}
    ${section('keys', 'Keys, newest first', tableOf('Keys', ['Key', 'State', 'Registered'], keys))}
    ${section(
      'audit',
      'Last changes',
      html`${await auditTable(view, audit.records)}
        <p><a href="${hrefOf(view, '/audit', { device: device.id })}">All changes of this device</a></p>`,
    )}`,
  }
}

/** Two actions of a line item can have one name, so the start of the id goes with it. */
async function actionNamesByAccount(
  { reader, policies }: View,
  accounts: readonly AccountId[],
): Promise<ReadonlyMap<AccountId, string>> {
  const loaded = new Map<string, Policy | undefined>()
  const names = new Map<AccountId, string>()
  for (const account of accounts) {
    const parsed = parseAccount(account)
    if (parsed?.kind !== 'action') continue
    const id = parsed.instanceId.toLowerCase()
    if (!loaded.has(id)) loaded.set(id, (await policies.of(reader, id))?.policy)
    const name = actionNameOf(account, () => loaded.get(id))
    if (name !== null) names.set(account, `${name} (${parsed.actionId.slice(0, 8)})`)
  }
  return names
}

function usageLinks(view: View, { id }: Device): Html {
  const refused = hrefOf(view, '/usage', { device: id, outcome: 'refused' })
  return html`<p>
    <a href="${hrefOf(view, '/usage', { device: id })}">Usage of this device</a>,
    <a href="${refused}">its refused requests</a>
  </p>`
}

function labelsPart(view: View, device: Device): Html {
  if (!mayCommand(view, device.instanceIds)) return html`<p>${labelLinks(view, device)}</p>`
  return html`${labelsForm(view, device.id, labelsText(device.labels))}
    <p class="soft">Separated by spaces, such as site=berlin line=3.</p>
    ${Object.keys(device.labels).length === 0 ? '' : html`<p>Devices with the same label: ${labelLinks(view, device)}</p>`}`
}

function labelsForm(view: View, deviceId: string, labels: string): Html {
  return html`<form method="post" action="${hrefOf(view, `/devices/${deviceId}/labels`)}">
    ${formTokenField(view)} ${new Inputs({ labels }).input({ name: 'labels', label: 'Labels of the device' })}
    <button>Save</button>
  </form>`
}

export function refusedLabelsPage(view: View, { id, name }: Device, labels: string, error: unknown): Page {
  return refusedForm(error, name ?? id, labelsForm(view, id, labels))
}

export function labelChangeOf({ labels }: Pick<Device, 'labels'>, text = ''): z.infer<typeof labelChange> {
  const set = labelsIn(text)
  return { set, remove: Object.keys(labels).filter((key) => !Object.hasOwn(set, key)) }
}

const KEY_TEXT = {
  CURRENT: 'current',
  NEXT: 'next: replaces the current key at its first use',
  PAST: 'replaced',
} as const

const CLOCK_TEXT = {
  AGREES: 'agrees with the cloud',
  OPEN: 'agrees with the cloud, its latest possible time is unknown',
  AHEAD: 'ahead',
  BEHIND: 'behind',
} as const

function stateRows({ now }: View, state: Awaited<ReturnType<typeof reportedState>>) {
  const { key, clock, suspension, revokedAt, policies, presence } = state
  const suspended =
    suspension === null ? [] : [['Suspended', html`${timeOf(suspension.since, now)} by ${suspension.by}`] as const]
  return [
    ['Id', html`<code>${state.id}</code>`],
    ['State', stateInWords(state)],
    ...(revokedAt === null
      ? []
      : [['Revoked', html`${timeOf(revokedAt, now)} by ${state.revokedBy ?? 'the cloud'}`] as const]),
    ...suspended,
    ['Enrolled', timeOf(state.enrolledAt, now)],
    ['Last sync', timeOf(state.lastSyncAt, now)],
    ['Live updates', presence === null ? 'unknown' : presence.online ? 'connected' : 'not connected'],
    ['Backlog', `${counted(state.backlog, 'entry', 'entries')}, as of its last sync`],
    [
      'Clock',
      clock === null ? 'unknown' : `${CLOCK_TEXT[clock.comparison]}, off by ${roughly(Math.abs(clock.offsetMs))}`,
    ],
    ['Software', state.software ?? 'unknown'],
    [
      'Key',
      html`<code>${key.id}</code>, since
        ${timeOf(key.since, now)}${key.rotationRequested ? ', replacement requested' : ''}`,
    ],
    ...(key.next === null ? [] : [['Next key', html`<code>${key.next}</code>`] as const]),
    ...policies.map(({ instanceId, name, applied, newest }) => {
      const rules = newest > applied ? `revision ${applied} of ${newest}` : `revision ${applied}, up to date`
      return ['Rules', html`${rules}, instance ${name ?? ''} <code>${instanceId}</code>`] as const
    }),
    ['Evidence', state.forked || state.rejected ? html`<a href="#evidence">segments that were not merged</a>` : 'none'],
    ...(state.releaseRequested ? [['Drain', 'return of unused tokens requested'] as const] : []),
  ] as const
}
