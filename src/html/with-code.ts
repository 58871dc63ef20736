import { type Piece, html } from './html.ts'

/** Text between backquotes as code. */
export function withCode(text: string): Piece {
  return text.split('`').map((piece, at) => (at % 2 === 1 ? html`<code>${piece}</code>` : piece))
}
