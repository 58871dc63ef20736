/** One self-contained page, which works without script. Names chosen by callers are always escaped. */
import {
  accountInWords,
  counted,
  grouped,
  roughly,
  sizeInWords,
  tokensInWords,
} from '../../../core/accounts/in-words.ts'
import { available } from '../../../core/accounts/grant.ts'
import { type DeviceReportWire, USE_BINS } from '../../../protocol/local/report.ts'
import { ITEM_STATUS, type ItemStatus } from '../../../protocol/service/status.ts'
import {
  ageOfRules,
  cloudInWords,
  countersOf,
  inWords,
  isHead,
  isRemedied,
  suspensionSentence,
} from '../../diagnostics/health-status.ts'
import { Html, html } from '../../../html/html.ts'
import { section } from '../../../html/section.ts'
import { sourceOf } from '../../../html/source-of.ts'
import { withCode } from '../../../html/with-code.ts'
import { SCRIPT, STYLE } from './page-style.ts'

// The policy contains hashes of these exact bytes: keep formatters away.
const STYLE_ELEMENT = new Html(`<style>${STYLE}</style>`)
const SCRIPT_ELEMENT = new Html(`<script>${SCRIPT}</script>`)

export const PAGE_POLICY = [
  "default-src 'none'",
  `style-src ${sourceOf(STYLE)}`,
  `script-src ${sourceOf(SCRIPT)}`,
  "connect-src 'self'",
  'img-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ')

export function statusPage(report: DeviceReportWire): string {
  const { health, status } = report
  const page = html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <title>Device status - Tallygate</title>
        <link rel="icon" href="data:," />
        ${STYLE_ELEMENT}
      </head>
      <body>
        <header>
          <h1>Tallygate device <span data-part="device">${status.name ?? status.deviceId ?? 'not enrolled'}</span></h1>
          <p class="health ${health.level}" role="status" data-part="health">${health.sentence}</p>
          <p class="soft" id="live" aria-live="polite">Reload the page to refresh it.</p>
          <div data-part="steps">${stepsOf(health.steps)}</div>
        </header>
        <main>
          ${problemsOf(report)} ${tokensOf(report)} ${connectionOf(report)} ${ledgerOf(report)} ${decisionsOf(report)}
          ${refusalsOf(report)}
        </main>
        <footer><a href="/status">As JSON</a></footer>
        ${SCRIPT_ELEMENT}
      </body>
    </html>`
  return page.text
}

function stepsOf(steps: readonly string[]): Html {
  return steps.length === 0
    ? html``
    : html`<h2 class="next">What to do</h2>
        ${groupsOf(steps).map(
          ({ head, steps: own }) =>
            html`${head === '' ? '' : html`<p>${withCode(head)}</p>`}
              <ol class="steps">
                ${own.map((step) => html`<li>${withCode(step)}</li>`)}
              </ol>`,
        )}`
}

/** Steps with the head before them; each group is numbered anew. */
function groupsOf(steps: readonly string[]): readonly { readonly head: string; readonly steps: readonly string[] }[] {
  const groups: { head: string; steps: string[] }[] = []
  for (const step of steps) {
    if (isHead(step) || groups.length === 0) groups.push({ head: isHead(step) ? step : '', steps: [] })
    if (!isHead(step)) groups.at(-1)?.steps.push(step)
  }
  return groups
}

function whatToDo(remedy: string): Html | string {
  return remedy === '' ? '' : html`<p><strong>What to do:</strong> ${withCode(remedy)}</p>`
}

/** Large text on a phone: a line can end between the words of a code. */
function withBreaks(code: string): readonly Html[] {
  return code.split(/(?<=_)/).map((word, at) => (at === 0 ? html`${word}` : html`<wbr />${word}`))
}

function problemsOf({ problems, status }: DeviceReportWire): Html {
  const now = status.clock.now
  const list = problems.map(({ subject, code, message, remedy, since }) => {
    const condition = status.conditions.find((each) => each.subject === subject && each.code === code)
    const isAbove = condition !== undefined && isRemedied(condition, status)
    return html`<div class="problem">
      <p>
        <strong>${subject}: ${withBreaks(code)}</strong>
        <span class="soft">for ${inWords(Math.max(0, now - since))}</span>
      </p>
      <p>${message}</p>
      ${isAbove ? html`<p class="soft">See the steps above.</p>` : whatToDo(remedy)}
    </div>`
  })
  return html`<section class="wide" aria-labelledby="problems">
    <h2 id="problems">Problems</h2>
    <div data-part="problems">${list.length === 0 ? html`<p class="soft">None.</p>` : list}</div>
  </section>`
}

function refusalsOf({ refusals, problems, status }: DeviceReportWire): Html {
  const list = [...Map.groupBy(refusals, ({ code, message }) => `${code} ${message}`).values()].flatMap((same) => {
    const [newest] = same
    if (newest === undefined) return []
    const { correlationId, at, request, code, message, remedy } = newest
    const times = same.length === 1 ? '' : `${same.length} requests, the newest `
    // The problem above has its message and remedy already.
    const isAbove = problems.some((problem) => problem.code === code)
    const rest = html`<p>${message}</p>
      ${whatToDo(remedy)}`
    return html`<div class="problem">
      <p>
        <strong>${withBreaks(code)}</strong> <span class="soft">${times}${ago(at, status.clock.now)}, ${request}</span>
      </p>
      ${isAbove ? html`<p class="soft">See the problem above.</p>` : rest}
      <p><code>${correlationId}</code></p>
    </div>`
  })
  return html`<section class="wide" aria-labelledby="refusals">
    <h2 id="refusals">Last errors of requests</h2>
    <div data-part="refusals">${list.length === 0 ? html`<p class="soft">None since the start.</p>` : list}</div>
  </section>`
}

const PUSH = { OFF: 'off', CONNECTED: 'connected', DISCONNECTED: 'not connected' }
const SESSION = {
  CLOSED: 'closed',
  KEPT: 'from before the restart, not confirmed yet',
  OPEN: 'open',
  LOCKED: 'locked by an administrator',
}

function connectionOf({ status }: DeviceReportWire): Html {
  const { lastContactAt, lastSyncAt, push, clock, policies, sessions, grant } = status
  const ofInstance = (id: string): string => {
    const name = policies.find(({ instanceId }) => instanceId === id)?.name ?? null
    return name === null || name === '' ? '' : ` of ${name}`
  }
  const rows: Row[] = [
    ...(status.name === null ? [] : [['Device id', status.deviceId ?? ''] as const]),
    ['Cloud', cloudInWords(status)],
    ...(status.suspension === null ? [] : [['Suspension', suspensionSentence(status.suspension)] as const]),
    ['Last contact', ago(lastContactAt, clock.now)],
    ['Last sync', ago(lastSyncAt, clock.now)],
    ['Notifications', PUSH[push]],
    ...sessions.map(({ instanceId, state }): Row => [`Session${ofInstance(instanceId)}`, SESSION[state]]),
    ...policies.map((policy): Row => [`Rules${ofInstance(policy.instanceId)}`, rulesOf(policy, status)]),
    ['Grant', grant === null ? 'none' : validity(grant)],
  ]
  return section('connection', 'Connection', rowsOf('connection', rows))
}

function rulesOf(policy: DeviceReportWire['status']['policies'][number], status: DeviceReportWire['status']): string {
  const { applied, newest, remainingMs } = policy
  if (applied === 0) return 'none yet'
  const age = ageOfRules(policy, status)
  const isNewest = newest <= applied
  return [
    isNewest ? `revision ${applied}` : `revision ${applied} applied`,
    ...(isNewest && remainingMs > 0 ? ['up to date'] : []),
    ...(age === null ? [] : [age]),
    ...(isNewest ? [] : [`${newest} available`]),
  ].join(', ')
}

function validity({ remainingMs }: NonNullable<DeviceReportWire['status']['grant']>): string {
  return remainingMs === 0 ? 'expired' : `valid for another ${roughly(remainingMs)} without the cloud`
}

const CLOCK = { exact: 'exact', rough: 'rough', unbounded: 'unbounded: only the earliest possible time is known' }

function ledgerOf({ status, clock, machine }: DeviceReportWire): Html {
  const { lastEntry, backlog, durability, startedAt, version } = status
  const within = clock.widthMs === null ? '' : `, within ${inWords(clock.widthMs)}`
  const rows: Row[] = [
    ['Not yet sent', `${grouped(backlog)} of ${counted(lastEntry, 'entry', 'entries')}`],
    [
      'Durability',
      durability === 'durable'
        ? 'charges are written to disk before the response'
        : 'write-behind, from reservations on disk',
    ],
    ['Clock', `${CLOCK[clock.health]}${within}`],
    ['Disk', `${sizeOf(machine.diskFree)} free of ${sizeOf(machine.diskTotal)}, ledger ${sizeOf(machine.ledgerSize)}`],
    ['Written', writtenOf(status.storage)],
    [
      'Memory',
      `agent ${sizeOf(machine.memoryOfAgent)}, ${sizeOf(machine.memoryFree)} free of ${sizeOf(machine.memoryTotal)}`,
    ],
    ['Backup', backupOf(status)],
    ['Key', keyOf(status)],
    ['Running', `version ${version}, for ${inWords(Math.max(0, status.clock.now - startedAt))}`],
  ]
  return section('ledger', 'Ledger and device', rowsOf('ledger', rows))
}

function backupOf({ backup, clock: { now } }: DeviceReportWire['status']): string {
  return backup === null ? 'none' : `${inWords(Math.max(0, now - backup.at))} ago, ${backup.file}`
}

function keyOf({ key: { id, since, next }, clock: { now } }: DeviceReportWire['status']): string {
  const age = since === null ? '' : `, for ${inWords(Math.max(0, now - since))}`
  return `${id}${age}${next === null ? '' : `; next key: ${next}`}`
}

function writtenOf(storage: DeviceReportWire['status']['storage']): string {
  if (storage === null) return 'unknown'
  const { written, perDecision, perDay, budgetPerDay, measuredMs } = storage
  const budget = budgetPerDay === null ? '' : ` of ${sizeOf(budgetPerDay)} allowed`
  const rate =
    perDay === null ? '' : `, ${sizeOf(perDay)} per day${budget} at the rate of the last ${inWords(measuredMs)}`
  const each = perDecision === null ? '' : `, ${sizeOf(Math.max(0, perDecision))} per decision`
  return `${sizeOf(written)} since the start${rate}${each}`
}

function noteOf({ exhausted, overdraft }: DeviceReportWire['status']['accounts'][number]): string {
  const notes = exhausted ? ['the cloud has no more'] : []
  if (overdraft !== '0') notes.push(`up to ${tokensInWords(BigInt(overdraft))} of the balance is overdraft`)
  return notes.join(', ')
}

function tokensOf({ status, use }: DeviceReportWire): Html {
  const charged = new Map(use.accounts.map((each) => [each.account, each.charged.map(BigInt)]))
  const rows = status.accounts.map((account) => {
    const counters = countersOf(account)
    const name = accountInWords(account.account, account.actionName)
    return html`<tr role="row">
      <th scope="row" role="rowheader">${name}</th>
      <td role="cell" data-label="Left" class="n">
        ${account.unlimited ? 'unlimited' : tokensInWords(available(counters))}
      </td>
      <td role="cell" data-label="Used" class="n">${tokensInWords(counters.used - counters.refunded)}</td>
      <td role="cell" data-label="Last 24 hours">${useOf(name, charged.get(account.account) ?? [], use)}</td>
      <td role="cell" data-label="Note">${noteOf(account)}</td>
    </tr>`
  })
  const body =
    rows.length === 0
      ? html`<tr role="row">
          <td role="cell" colspan="5" class="soft">There are no tokens on this device.</td>
        </tr>`
      : rows
  const day = USE_BINS * use.binMs
  const known = status.clock.now - use.since
  return html`<section class="wide" aria-labelledby="tokens">
    <h2 id="tokens">Tokens</h2>
    <div class="scroll" role="group" aria-label="Table of tokens" tabindex="0">
      <table role="table">
        <thead role="rowgroup">
          <tr role="row">
            <th scope="col" role="columnheader">Line item</th>
            <th scope="col" role="columnheader" class="n">Left</th>
            <th scope="col" role="columnheader" class="n">Used</th>
            <th scope="col" role="columnheader">Charged in the last 24 hours</th>
            <th scope="col" role="columnheader">Note</th>
          </tr>
        </thead>
        <tbody role="rowgroup" data-part="tokens">
          ${body}
        </tbody>
      </table>
    </div>
    <p class="soft" data-part="use-known">
      ${known >= day ? '' : `Charges are known for the last ${inWords(Math.max(0, known))}.`}
    </p>
  </section>`
}

function useOf(name: string, charged: readonly bigint[], use: DeviceReportWire['use']): Html {
  const sum = charged.reduce((total, amount) => total + amount, 0n)
  if (sum === 0n) return html`<span class="soft">nothing</span>`
  const { at, most } = peakOf(charged)
  const words = `${tokensInWords(sum)}, at most ${tokensInWords(most)} in ${inWords(use.binMs)}`
  const before = (charged.length - at) * use.binMs
  const unknown = Math.max(0, Math.floor((use.since - use.until) / use.binMs) + charged.length)
  return html`${curve(`${name}: ${words}, up to ${inWords(before)} ago`, charged, most, unknown)}
    <span class="soft">${words}</span>`
}

function peakOf(charged: readonly bigint[]): { readonly at: number; readonly most: bigint } {
  let peak = { at: 0, most: 0n }
  for (const [at, amount] of charged.entries()) if (amount >= peak.most) peak = { at, most: amount }
  return peak
}

const CURVE_HEIGHT = 20

/** One step for each bin, so that a single bin is visible too. @param first bin where data begins */
function curve(label: string, amounts: readonly bigint[], most: bigint, first: number): Html {
  const steps = amounts.slice(first).map((amount, at) => {
    const share = Number((amount * 1_000n) / most) / 1_000
    return `V${(CURVE_HEIGHT * (1 - share)).toFixed(1)} H${first + at + 1}`
  })
  const width = amounts.length
  const outline = `M${first} ${CURVE_HEIGHT} ${steps.join(' ')}`
  return html`<svg
    role="img"
    aria-label="${label}"
    viewBox="0 -1 ${width} ${CURVE_HEIGHT + 2}"
    preserveAspectRatio="none"
  >
    <path class="area" d="${outline} V${CURVE_HEIGHT} Z"></path>
    <path class="curve" d="${outline} V${CURVE_HEIGHT}"></path>
  </svg>`
}

function decisionsOf({ decisions, status }: DeviceReportWire): Html {
  const rows = decisions.map(
    ({ at, correlationId, requester, item, version, count, outcome, tokens }) =>
      html`<tr role="row">
        <td role="cell" data-label="When">
          <time datetime="${new Date(at).toISOString()}">${ago(at, status.clock.now)}</time>
        </td>
        <td role="cell" data-label="Requester">${requester.type} ${requester.value}</td>
        <td role="cell" data-label="Item">${count} of ${item}${version === '' ? '' : ` ${version}`}</td>
        <td role="cell" data-label="Decision">${reasonOf(outcome)}</td>
        <td role="cell" data-label="Tokens" class="n">${tokensInWords(BigInt(tokens))}</td>
        <td role="cell" data-label="Explain"><code>${correlationId}</code></td>
      </tr>`,
  )
  const body =
    rows.length === 0
      ? html`<tr role="row">
          <td role="cell" colspan="6" class="soft">None since the ledger was last delivered.</td>
        </tr>`
      : rows
  return html`<section class="wide" aria-labelledby="decisions">
    <h2 id="decisions">Last decisions</h2>
    <div class="scroll" role="group" aria-label="Table of decisions" tabindex="0">
      <table role="table">
        <thead role="rowgroup">
          <tr role="row">
            <th scope="col" role="columnheader">When</th>
            <th scope="col" role="columnheader">Requester</th>
            <th scope="col" role="columnheader">Item</th>
            <th scope="col" role="columnheader">Decision</th>
            <th scope="col" role="columnheader" class="n">Tokens</th>
            <th scope="col" role="columnheader">For tallygate explain</th>
          </tr>
        </thead>
        <tbody role="rowgroup" data-part="decisions">
          ${body}
        </tbody>
      </table>
    </div>
  </section>`
}

function reasonOf(outcome: string): string {
  if (outcome === 'GRANTED') return 'granted'
  if (outcome === 'NOT_CHARGED') return 'not charged: another item was refused'
  const known = Object.hasOwn(ITEM_STATUS, outcome) ? ITEM_STATUS[outcome as ItemStatus].description : outcome
  return `refused: ${known}`
}

type Row = readonly [name: string, value: string]

function rowsOf(part: string, rows: readonly Row[]): Html {
  return html`<dl data-part="${part}">
    ${rows.map(
      ([name, value]) =>
        html`<dt>${name}</dt>
          <dd>${value}</dd>`,
    )}
  </dl>`
}

function ago(instant: number | null, now: number): string {
  return instant === null ? 'never' : `${inWords(Math.max(0, now - instant))} ago`
}

function sizeOf(bytes: number | null): string {
  return bytes === null ? 'unknown' : sizeInWords(bytes)
}
