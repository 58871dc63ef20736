import { hash } from 'node:crypto'

/** The source of an inline style or script in a content security policy. @param text the exact content of its element */
export function sourceOf(text: string): string {
  return `'sha256-${hash('sha256', text, 'base64')}'`
}
