/** HTML from template literals. Interpolated strings are escaped; {@link Html} values are not. */
import { UNSEEN } from './unseen.ts'

/** Trusted HTML; only {@link html} creates it. */
export class Html {
  readonly text: string

  constructor(text: string) {
    this.text = text
  }
}

export type Piece = string | number | Html | readonly Piece[]

export function html(strings: TemplateStringsArray, ...pieces: readonly Piece[]): Html {
  return new Html(strings.reduce((made, string, at) => made + markupOf(pieces[at - 1] ?? '') + string))
}

function markupOf(piece: Piece): string {
  if (piece instanceof Html) return piece.text
  if (typeof piece === 'object') return piece.map(markupOf).join('')
  return escapeHtml(String(piece))
}

const ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}

/** A value of a form, which must come back unchanged: control characters stay as they are. */
export function formValue(text: string): Html {
  return new Html(escapeMarkup(text))
}

function escapeMarkup(text: string): string {
  return text.replace(/[&<>"']/g, (char) => ESCAPES[char] ?? '')
}

/** Escapes markup, and shows unseen characters by code. */
function escapeHtml(text: string): string {
  return escapeMarkup(text.replace(UNSEEN, (char) => `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}`))
}
