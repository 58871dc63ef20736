/** A value as one line of JSON; amounts of micro-tokens become integer text. */
export function jsonLine(value: unknown): string {
  return JSON.stringify(value, (_key, part: unknown) => (typeof part === 'bigint' ? String(part) : part))
}
