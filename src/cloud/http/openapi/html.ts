/** HTML templates: values are escaped unless they are {@link Html}. */

export class Html {
  readonly text: string
  constructor(text: string) {
    this.text = text
  }
}

type Part = Html | string | number | readonly Part[]

const ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}

export function html(strings: TemplateStringsArray, ...shares: readonly Part[]): Html {
  return new Html(
    strings.map((text, index) => text + (index < shares.length ? write(shares[index] ?? '') : '')).join(''),
  )
}

function write(share: Part): string {
  if (share instanceof Html) return share.text
  if (typeof share === 'object') return share.map(write).join('')
  return String(share).replaceAll(/[&<>"']/g, (character) => ESCAPES[character] ?? character)
}

/** Renders `code`, paragraphs and dash lists. */
export function prose(text: string): Html {
  const blocks = text.split('\n\n').map((block) => {
    const lines = block.split('\n')
    const isList = lines.every((line) => line.startsWith('- '))
    return isList
      ? html`<ul>
          ${lines.map((line) => html`<li>${inline(line.slice(2))}</li>`)}
        </ul>`
      : html`<p>${inline(block)}</p>`
  })
  return html`${blocks}`
}

export function inline(text: string): Html {
  return html`${text.split('`').map((piece, index) => (index % 2 === 1 ? html`<code>${piece}</code>` : piece))}`
}
