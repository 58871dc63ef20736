import { type Html, html } from '../../html/html.ts'
import { Inputs } from './inputs.ts'
import { ROWS_SHOWN, type View, instanceField, typed } from './page.ts'

interface Search<Found> {
  readonly search: string
  readonly found: readonly Found[]
  /** Empty for a list that fits on one page. */
  readonly form: Html | string
}

/** Line items whose id contains what is typed. */
export function searchLineItems<Found extends { readonly id: string }>(
  view: View,
  to: string,
  all: readonly Found[],
): Search<Found> {
  const search = typed(view, 'search')
  const part = search.toLowerCase()
  const found = part === '' ? all : all.filter(({ id }) => id.toLowerCase().includes(part))
  if (all.length <= ROWS_SHOWN) return { search, found, form: '' }
  const input = new Inputs({ search }).input({ name: 'search', label: 'Part of the line item' }, html`type="search"`)
  const form = html`<form class="filter" method="get" action="${view.root}${to}">
    ${instanceField(view)} ${input}
    <button>Search</button>
  </form>`
  return { search, found, form }
}
