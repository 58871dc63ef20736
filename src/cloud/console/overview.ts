import { grouped, roughly, tokensInWords } from '../../core/accounts/in-words.ts'
import { isRefusal } from '../../core/rules/refusal-reasons.ts'
import { INSTANT_MAX } from '../../protocol/wire.ts'
import { Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { overdueBefore } from '../devices/terms.ts'
import { CONTACT_TEXT } from './devices.ts'
import { mayEdit, newFormHref } from './edit.ts'
import { INSTANCE_EDIT } from './edit-instance.ts'
import {
  type Page,
  type View,
  NO_INSTANCE,
  ROWS_SHOWN,
  hrefOf,
  nameOfInstance,
  numeric,
  offsetOf,
  pagesByOffset,
  tableOf,
  timeOf,
} from './page.ts'
import { type PoolUse, poolsOf } from '../accounts/pools-of.ts'
import { HOURS, type RecentUsage, itemOf, recentUsage, requesterOf, statusInWords } from './recent-usage.ts'

const COUNTED_MAX = 10_000
const REFUSALS_SHOWN = 10
const DAY_MS = 86_400_000

export async function overviewPage(view: View): Promise<Page> {
  const recent = await recentUsage(view.reader, view.instance?.id ?? null, view.now)
  const pools = view.instance === null ? await instancesPart(view) : await poolsPart(view, view.instance.id, recent)
  return {
    title: view.instance === null ? 'All instances' : nameOfInstance(view.instance),
    content: html`${pools} ${await devicesPart(view)} ${usagePart(view, recent)} ${refusalsPart(view, recent)}`,
  }
}

/** Of an administrator who may read all of them: others have always chosen one. */
async function instancesPart(view: View): Promise<Html> {
  const found = await view.reader.instances.list(offsetOf(view.query['from']), ROWS_SHOWN + 1)
  const rows = found
    .slice(0, ROWS_SHOWN)
    .map((instance) => [
      html`<a href="${hrefOf(view, '', { instance: instance.id })}">${nameOfInstance(instance)}</a>`,
      instance.accountId,
      timeOf(instance.created, view.now),
    ])
  return section(
    'instances',
    'Instances',
    html`${view.instances.length === 0 ? NO_INSTANCE : tableOf('Instances', ['Instance', 'Account', 'Created'], rows)}
    ${newInstanceLink(view)} ${pagesByOffset(view, '', { isMore: found.length > ROWS_SHOWN })}
    ${
      view.instances.length < ROWS_SHOWN
        ? ''
        : html`<form method="get" action="${view.root}">
            <label>Id of another instance <input name="instance" required size="40" /></label>
            <button>Show</button>
          </form>`
    }`,
  )
}

function newInstanceLink(view: View): Html | string {
  return mayEdit(view, INSTANCE_EDIT) ? html`<p><a href="${newFormHref(view, INSTANCE_EDIT)}">New instance</a></p>` : ''
}

async function poolsPart(view: View, instanceId: string, recent: RecentUsage): Promise<Html> {
  const { reader, policies, now } = view
  const loaded = await policies.of(reader, instanceId)
  const lineItems = (loaded?.policy.lineItems ?? []).filter(({ state, endsAt }) => state === 'DEPLOYED' && endsAt > now)
  const pools = await poolsOf(reader, instanceId, lineItems.slice(0, ROWS_SHOWN), now)
  const charged = new Map<string, bigint>()
  for (const { activationId, tokens: amount } of recent.records) {
    if (activationId !== null) charged.set(activationId, (charged.get(activationId) ?? 0n) + amount)
  }
  const rows = pools.map((pool) => [
    pool.lineItem.id,
    shareOf(pool),
    tokensInWords(pool.used),
    pool.left === null ? 'unlimited' : tokensInWords(pool.left),
    tokensInWords(pool.onDevices),
    lastsFor(pool, charged.get(pool.lineItem.id) ?? 0n, now - recent.since),
    periodOf(pool, now),
  ])
  const columns = [
    'Line item',
    'Used',
    ...['Tokens used', 'Tokens left', 'Of these on devices'].map(numeric),
    'Lasts',
    'Period',
  ]
  return section(
    'pools',
    'Pools',
    html`${tableOf('Pools', columns, rows)}
      <p class="soft">
        ${lineItems.length > ROWS_SHOWN ? `The first ${ROWS_SHOWN} of ${grouped(lineItems.length)} line items. ` : ''}“Lasts”
        assumes the use of the last ${roughly(now - recent.since)}.
      </p>
      ${view.instances.length === 1 ? newInstanceLink(view) : ''}`,
  )
}

function periodOf({ lineItem: { endsAt }, resetAt }: PoolUse, now: number): Html {
  if (resetAt !== null) return html`resets ${timeOf(resetAt, now)}`
  return endsAt === INSTANT_MAX ? html`without end` : html`ends ${timeOf(endsAt, now)}`
}

function shareOf({ lineItem, used, left }: PoolUse): Html {
  if (left === null) return html`no limit`
  const total = used + left
  const percent = total <= 0n ? 100 : Number((used * 100n) / total)
  const text = `${percent}\u{a0}%`
  return html`<meter
      min="0"
      max="100"
      low="80"
      high="95"
      optimum="0"
      value="${percent}"
      aria-label="Used part of ${lineItem.id}"
    >
      ${text}
    </meter>
    ${text}`
}

function lastsFor({ left }: PoolUse, charged: bigint, overMs: number): string {
  if (left === null) return 'without limit'
  if (left <= 0n) return 'used up'
  if (charged <= 0n) return 'no use lately'
  const ms = (left * BigInt(Math.max(1, Math.round(overMs)))) / charged
  const days = ms / BigInt(DAY_MS)
  if (days > 3_650n) return 'more than 10 years'
  return roughly(Number(ms))
}

async function devicesPart(view: View): Promise<Html> {
  const instanceId = view.instance?.id
  const { scope } = view.administrator
  const overdue = overdueBefore(view.now, view.terms)
  const counts = await view.reader.edge.devices.countByContact({ instanceId, scope }, overdue, COUNTED_MAX)
  const shown = [...counts].map(([contact, count]) => {
    const number = `${grouped(count)}${count === COUNTED_MAX ? ' or more' : ''}`
    return html`<div>
      <dt><a href="${hrefOf(view, '/devices', { contact })}">${CONTACT_TEXT[contact]}</a></dt>
      <dd>${number}</dd>
    </div>`
  })
  return section('devices', 'Devices', html`<dl class="numbers">${shown}</dl>`)
}

const CHART_HEIGHT = 100

function usagePart({ now }: View, { byHour, since }: RecentUsage): Html {
  const peak = byHour.reduce((most, each) => (each > most ? each : most), 0n)
  const total = byHour.reduce((sum, each) => sum + each, 0n)
  const bars = byHour.map((amount, hour) => {
    const height = peak <= 0n || amount <= 0n ? 0 : Math.max(1, Number((amount * BigInt(CHART_HEIGHT)) / peak))
    const title = `${hourOf(now, hour)}: ${tokensInWords(amount)} tokens`
    return html`<rect x="${hour * 10 + 1}" y="${CHART_HEIGHT - height}" width="8" height="${height}">
      <title>${title}</title>
    </rect>`
  })
  const label = `${tokensInWords(total)} tokens in the last ${roughly(now - since)}, at most ${tokensInWords(peak)} in an hour`
  return section(
    'usage',
    'Usage per hour',
    html`<svg viewBox="0 0 ${HOURS * 10} ${CHART_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${label}">
        ${bars}
      </svg>
      <div class="axis"><span>${HOURS} hours ago</span><span>now</span></div>
      <p>${label}.</p>`,
  )
}

function hourOf(now: number, hour: number): string {
  const from = new Date(now - (HOURS - hour) * 3_600_000)
  return `${from.toISOString().slice(11, 16)} UTC`
}

function refusalsPart(view: View, { records }: RecentUsage): Html {
  const { now } = view
  const refusals = records.filter(({ status }) => isRefusal(status))
  const byReason = [...Map.groupBy(refusals, ({ status }) => status)]
  const rows = refusals
    .slice(0, REFUSALS_SHOWN)
    .map((record) => [timeOf(record.usageTime, now), requesterOf(record), itemOf(record), statusInWords(record.status)])
  const counted = byReason.map(([status, { length }]) => `${grouped(length)} × ${statusInWords(status)}`).join(', ')
  return section(
    'refusals',
    'Last refusals',
    html`${counted === '' ? '' : html`<p>${counted}.</p>`}
      ${tableOf('Last refusals', ['When', 'Requester', 'Item', 'Reason'], rows)}
      <p>
        <a href="${hrefOf(view, '/usage', { outcome: 'refused' })}">All refused requests, with their devices</a>
      </p>`,
  )
}
