import { type Html, html } from './html.ts'

/** With a heading that names it. */
export function section(id: string, title: string, content: Html): Html {
  return html`<section aria-labelledby="${id}">
    <h2 id="${id}">${title}</h2>
    ${content}
  </section>`
}
