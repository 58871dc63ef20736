/** A text as one word of a shell. */
export function shellQuoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}

/** In quotes only if a shell needs them. */
export function shellWord(text: string): string {
  return /^[\w.:@/+-]+$/.test(text) ? text : shellQuoted(text)
}
