import { roughly } from '../../core/accounts/in-words.ts'
import { BASE_STYLE } from '../../html/base-style.ts'
import { CodedError, type ErrorCode } from '../../protocol/errors.ts'
import { Html, type Piece, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { sourceOf } from '../../html/source-of.ts'
import type { AdministerSinks } from '../events/administer-sinks.ts'
import type { EdgeTerms } from '../devices/terms.ts'
import type { LoadedPolicy, Policies } from '../policy/load-policy.ts'
import type { Administrator } from '../service-api/principal.ts'
import type { DeviceStateWire } from '../../protocol/edge/administration.ts'
import { usageCursor } from '../../protocol/service/usage-export.ts'
import type { Instance } from '../storage/records.ts'
import { noInstance } from '../storage/require-record.ts'
import type { Reader } from '../storage/store.ts'

export const ROWS_SHOWN = 50

export interface View {
  readonly reader: Reader
  /** In the settings of this node. */
  readonly sinks: AdministerSinks['sinks']
  readonly policies: Policies
  readonly presence: (deviceId: string) => DeviceStateWire['presence']
  readonly terms: Pick<EdgeTerms, 'syncEveryMs'>
  /** Limited to the instances that it may read. */
  readonly administrator: Administrator
  /** The chosen one; null: all that the administrator may read. */
  readonly instance: Instance | null
  /** Policy revision of the instance; null: no instance is chosen. */
  readonly revision: number | null
  /** To choose from: the first {@link ROWS_SHOWN}. */
  readonly instances: readonly Instance[]
  readonly root: string
  /** Below the root. */
  readonly path: string
  readonly params: Readonly<Record<string, string>>
  readonly query: Readonly<Record<string, string>>
  /** For a form that is saved once. */
  readonly newId: () => string
  /** Goes into every form. */
  readonly formToken: string
  readonly now: number
}

export interface Page {
  readonly title: string
  readonly content: Html
  /** HTTP status (default: 200). */
  readonly status?: number
}

const MENU = [
  ['', 'Overview'],
  ['/devices', 'Devices'],
  ['/line-items', 'Line items'],
  ['/rules', 'Rules of access'],
  ['/try', 'Try a request'],
  ['/rate-tables', 'Rate tables'],
  ['/usage', 'Usage'],
  ['/sessions', 'Sessions'],
  ['/sinks', 'Event sinks'],
  ['/audit', 'Audit'],
] as const

const STYLE = `${BASE_STYLE}
header,main{max-width:76rem;margin:0 auto;padding:.8rem 1rem}
header{display:flex;flex-wrap:wrap;gap:.4rem 1.2rem;align-items:center}
header p,header form{margin:0}header form{min-width:0;max-width:100%}header select{width:13rem}header:has(select) nav{flex-basis:100%}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem}
nav a{padding:.2rem 0}nav a[aria-current]{color:var(--ink);font-weight:600;text-decoration-color:var(--bar);text-underline-offset:.3rem}
.end{margin-left:auto}
main{display:grid;gap:1rem;grid-template-columns:minmax(0,1fr);overflow-wrap:anywhere}
h1{font-size:1.35rem;margin:.4rem 0 0}h2{font-size:1.05rem;margin:0 0 .6rem}h3{font-size:1rem;margin:1rem 0 .4rem}
section form,.filter{display:flex;flex-wrap:wrap;gap:.6rem;align-items:end}
section form>a,label>span{padding:.475rem 0}label:has(textarea){flex-basis:100%}
label{display:grid;grid-template-columns:minmax(0,auto);gap:.15rem;color:var(--soft);max-width:100%}
input,select,textarea,button{font:inherit;color:var(--ink);background:var(--ground);border:1px solid var(--soft);border-radius:.35rem;padding:.35rem .6rem;max-width:100%}
input:not([type=checkbox]),select,button{height:2.4rem}
textarea{width:min(40rem,100%);min-height:5rem}
button{cursor:pointer;background:var(--card)}button.danger{border-color:var(--refusing);color:var(--refusing)}
:focus-visible,[type=datetime-local]:focus-within{outline:3px solid var(--bar);outline-offset:2px}
[aria-invalid]{border:2px solid var(--refusing)}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem}
.hidden{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden;white-space:nowrap}
.ok{color:var(--ok)}.attention{color:var(--attention)}.refusing{color:var(--refusing)}
.numbers{display:flex;flex-wrap:wrap;gap:.6rem 2rem;margin:0}.numbers div{display:flex;flex-direction:column-reverse}
.numbers dd{font-size:1.5rem;font-variant-numeric:tabular-nums}
meter{width:8rem;max-width:100%}th[scope=col]{overflow-wrap:normal}th,td{min-width:min(6.6rem,10vw)}.n{min-width:0}form+p{margin-top:.5rem}section form+table,section p+table{margin-top:.6rem}
svg{display:block;width:100%;height:7rem;border-bottom:1px solid var(--soft)}rect{fill:var(--bar)}
.axis{display:flex;justify-content:space-between;color:var(--soft)}
.bulk{display:block;margin-top:.8rem}.bulk .filter,dl+.filter{margin-top:.8rem}section table+p{margin-top:.5rem}
th input[type=checkbox]{width:1.1rem;height:1.1rem;margin-right:.3rem;vertical-align:text-bottom}
ol{margin:.6rem 0;padding-left:2.5rem}
.rows{flex-basis:100%}.rows table{table-layout:fixed}.rows input,.rows select{width:100%;min-width:4rem}
.pages{display:flex;gap:1rem;margin:.8rem 0 0}
.problem{margin:0;padding-left:.8rem;border-left:.3rem solid var(--attention)}
time{white-space:nowrap}
@media(max-width:66rem){
meter{width:6rem}
table,tr,td,tbody th{display:block}tbody{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(20rem,100%),1fr));gap:.6rem}thead{display:block;position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
tbody tr{border:1px solid var(--line);border-radius:.5rem;padding:.4rem .8rem}
tbody th,td{border:0;padding:.15rem 0}tbody th{color:var(--ink)}
td{display:grid;grid-template-columns:minmax(6.8rem,30%) minmax(0,1fr);gap:.6rem}td.n{text-align:left}td:has(>div:empty){display:none}
.rows td{grid-template-columns:minmax(0,1fr);gap:0}
td::before,.rows tbody th::before{content:attr(data-label);color:var(--soft);font-weight:400;white-space:normal}
th,td{min-width:0}time{white-space:normal}
}
`

/** White space counts for the hash in the policy. */
const STYLE_ELEMENT = new Html(`<style>${STYLE}</style>`)

export function contentPolicy(script?: string): string {
  return [
    "default-src 'none'",
    `style-src ${sourceOf(STYLE)}`,
    ...(script === undefined ? [] : [`script-src ${sourceOf(script)}`]),
    'img-src data:',
    "base-uri 'none'",
    "form-action 'self'",
    "frame-ancestors 'none'",
  ].join('; ')
}

/** @param header null: no administrator is signed in */
export function documentOf({ title, content }: Page, header: Html | null): string {
  return html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <title>${title} - Tallygate console</title>
        <link rel="icon" href="data:," />
        ${STYLE_ELEMENT}
      </head>
      <body>
        <a class="skip" href="#main">Skip to content</a>
        ${header ?? ''}
        <main id="main">
          <h1>${title}</h1>
          ${content}
        </main>
      </body>
    </html> `.text
}

export function headerOf(view: View): Html {
  const { root, path, instance, instances, administrator } = view
  const isListed = instance === null || instances.some(({ id }) => id === instance.id)
  const [at] = MENU.find(([to]) => isAt(path, to)) ?? MENU[0]
  return html`<header>
    ${menuOf(view, administrator.scope === null)}
    ${
      instances.length < 2
        ? ''
        : html`<form class="filter" method="get" action="${root}${at}">
            <label class="hidden" for="instance">Instance</label>
            <select id="instance" name="instance">
              ${administrator.scope === null ? html`<option value="">All instances</option>` : ''}
              ${(isListed ? instances : [...instances, instance]).map((each) =>
                option(each.id, nameOfInstance(each), instance?.id ?? ''),
              )}
            </select>
            <button>Show</button>
          </form>`
    }
    ${signOutForm(view, administrator.name ?? `key ${administrator.keyId.slice(0, 8)}`)}
  </header>`
}

/** @param formToken null: no administrator is signed in */
export function errorHeaderOf(root: string, path: string, formToken: string | null): Html {
  return html`<header>
    ${menuOf({ root, path, instance: null, instances: [] }, true)}
    ${formToken === null ? '' : signOutForm({ root, formToken }, '')}
  </header>`
}

function signOutForm({ root, formToken }: Pick<View, 'root' | 'formToken'>, who: string): Html {
  return html`<form class="end" method="post" action="${root}/sign-out">
    ${formTokenField({ formToken })}
    <span class="soft">${who}</span>
    <button>Sign out</button>
  </form>`
}

/** @param isUnlimited whether the administrator may see events, which concern all instances */
function menuOf(view: Pick<View, 'root' | 'path' | 'instance' | 'instances'>, isUnlimited: boolean): Html {
  const shown = MENU.filter(([to]) => isUnlimited || to !== '/sinks')
  return html`<nav aria-label="Pages">
    ${shown.map(
      ([to, name]) =>
        html`<a href="${hrefOf(view, to)}" ${isAt(view.path, to) ? new Html('aria-current="page"') : ''}>${name}</a> `,
    )}
  </nav>`
}

function isAt(path: string, to: string): boolean {
  if (to === '') return path === '' || path === '/' || path.startsWith('/instances/')
  return path === to || path.startsWith(`${to}/`)
}

/** A link inside of the console, which keeps the chosen instance. */
export function hrefOf(
  { root, instance, instances }: Pick<View, 'root' | 'instance' | 'instances'>,
  to: string,
  query: Readonly<Record<string, string | number>> = {},
): string {
  const all = new URLSearchParams()
  if (instance !== null && instances.length > 1) all.set('instance', instance.id)
  for (const [name, value] of Object.entries(query)) if (value !== '') all.set(name, String(value))
  return `${root}${to}${all.size === 0 ? '' : `?${all.toString()}`}`
}

export function formTokenField({ formToken }: Pick<View, 'formToken'>): Html {
  return html`<input type="hidden" name="formToken" value="${formToken}" />`
}

/** Keeps the chosen instance in a form of the method GET. */
export function instanceField({ instance }: Pick<View, 'instance'>): Html | string {
  return instance === null ? '' : html`<input type="hidden" name="instance" value="${instance.id}" />`
}

export function confirmation(text: string): Html {
  return html`<label
    ><span><input type="checkbox" name="confirmed" value="yes" required /> ${text}</span></label
  >`
}

export function option(value: string, text: string, chosen: string): Html {
  return html`<option value="${value}" ${value === chosen ? new Html('selected') : ''}>${text}</option>`
}

const FORM_ERRORS: ReadonlySet<ErrorCode> = new Set(['BAD_REQUEST', 'CONFLICT', 'LABEL_INVALID', 'NOT_FOUND'])

/** The form with what was typed, in place of the page that it would show. @throws other errors than those of its fields */
export function refusedForm(error: unknown, title: string, form: Html): Page {
  if (!(error instanceof CodedError) || !FORM_ERRORS.has(error.code)) throw error
  const problem = html`<p class="problem" role="alert">${error.message} (${error.code})</p>`
  return { title, status: error.httpStatus, content: section('refused', 'This did not work', html`${problem} ${form}`) }
}

export function rowsOf(rows: readonly (readonly [name: string, value: Piece])[]): Html {
  return html`<dl>
    ${rows.map(
      ([name, value]) =>
        html`<dt>${name}</dt>
          <dd>${value}</dd>`,
    )}
  </dl>`
}

export type Column = string | { readonly title: string; readonly numeric: true }

export function numeric(title: string): Column {
  return { title, numeric: true }
}

/** In a narrow window, rows are cards. The roles keep it a table for screen readers there. */
export function tableOf(label: string, columns: readonly Column[], rows: readonly (readonly Piece[])[]): Html {
  const titleOf = (column: Column | undefined): string => (typeof column === 'object' ? column.title : (column ?? ''))
  const classOf = (column: Column | undefined): Html =>
    typeof column === 'object' ? new Html('class="n"') : new Html('')
  if (rows.length === 0) return html`<p class="soft">None.</p>`
  return html`<table role="table" aria-label="${label}">
    <thead role="rowgroup">
      <tr role="row">
        ${columns.map((column) => html`<th role="columnheader" scope="col" ${classOf(column)}>${titleOf(column)}</th>`)}
      </tr>
    </thead>
    <tbody role="rowgroup">
      ${rows.map(
        (cells) =>
          html`<tr role="row">
            ${cells.map((cell, at) =>
              at === 0
                ? html`<th role="rowheader" scope="row" data-label="${titleOf(columns[at])}">${cell}</th>`
                : html`<td role="cell" data-label="${titleOf(columns[at])}" ${classOf(columns[at])}>
                    <div>${cell}</div>
                  </td>`,
            )}
          </tr>`,
      )}
    </tbody>
  </table>`
}

export const NO_INSTANCE = html`<p>
  There is no instance yet. Create one with <b>New instance</b> in the overview, or with
  <code>tallygate instances set NAME --account CUSTOMER</code>.
</p>`

/** For pages about one instance. @throws CodedError NOT_FOUND if the store has none */
export async function ofInstance(
  view: View,
  title: string,
  make: (instance: Instance, loaded: LoadedPolicy) => Promise<Html>,
): Promise<Page> {
  const { reader, policies, instance, instances } = view
  if (instance === null) {
    const links = instances.map(
      (each) => html`<li><a href="${view.root}${view.path}?instance=${each.id}">${nameOfInstance(each)}</a></li>`,
    )
    const choice =
      links.length === 0
        ? NO_INSTANCE
        : html`<ul>
            ${links}
          </ul>`
    return { title, content: section('choice', links.length === 0 ? 'Instances' : 'Choose an instance', choice) }
  }
  const loaded = await policies.of(reader, instance.id)
  if (loaded === undefined) throw noInstance(instance.id)
  return { title, content: await make(instance, loaded) }
}

/** @throws CodedError INSTANCE_NOT_IN_SCOPE unless the administrator may read all of the instances */
export function requireReadable(view: View, instanceIds: readonly string[], what: string): void {
  if (mayRead(view, instanceIds)) return
  throw new CodedError('INSTANCE_NOT_IN_SCOPE', `${what} belongs to an instance that you may not read.`)
}

export function mayRead({ administrator: { scope } }: View, instanceIds: readonly string[]): boolean {
  return scope === null || instanceIds.every((id) => scope.has(id.toLowerCase()))
}

export function pagesByOffset(
  view: View,
  to: string,
  { query = {}, isMore }: { readonly query?: Readonly<Record<string, string>>; readonly isMore: boolean },
): Html {
  const offset = offsetOf(view.query['from'])
  const at = (from: number): string => hrefOf(view, to, { ...query, from })
  return pagesOf(offset === 0 ? null : at(Math.max(0, offset - ROWS_SHOWN)), isMore ? at(offset + ROWS_SHOWN) : null)
}

export function offsetOf(text = '0'): number {
  return /^\d{1,9}$/.test(text) ? Number(text) : 0
}

export function positionOf(text = ''): bigint | undefined {
  return usageCursor.safeParse(text).data
}

/** Of a filter: text that is pasted often has spaces around it. */
export function typed({ query }: Pick<View, 'query'>, name: string): string {
  return (query[name] ?? '').trim()
}

export function olderLink(href: string | null, text = 'Older'): Html {
  return pagesOf(null, href, text)
}

function pagesOf(back: string | null, on: string | null, next = 'Next'): Html {
  if (back === null && on === null) return html``
  return html`<nav class="pages" aria-label="Pages of the table">
    ${back === null ? '' : html`<a href="${back}" rel="prev">Previous</a>`}
    ${on === null ? '' : html`<a href="${on}" rel="next">${next}</a>`}
  </nav>`
}

export function timeOf(at: number | null, now: number): Html {
  if (at === null) return html`never`
  const distance = now - at
  const words = distance >= 0 ? `${roughly(distance)} ago` : `in ${roughly(-distance)}`
  const exact = new Date(at).toISOString()
  return html`<time datetime="${exact}" title="${exact}">${words}</time>`
}

/** In UTC. For times that people compare with those of logs and of contracts. */
export function exactTimeOf(at: number, withSeconds = true): Html {
  return html`<time datetime="${new Date(at).toISOString()}">${exactTextOf(at, withSeconds)}</time>`
}

/** UTC. */
export function exactTextOf(at: number, withSeconds = true): string {
  return new Date(at)
    .toISOString()
    .slice(0, withSeconds ? 19 : 16)
    .replace('T', ' ')
}

export function nameOfInstance({ shortName, id }: Pick<Instance, 'shortName' | 'id'>): string {
  return shortName === '' ? id : `${shortName} (${id.slice(0, 8)})`
}
