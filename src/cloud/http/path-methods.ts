/** Methods by path, to distinguish a wrong method from a wrong path. */
export class PathMethods {
  readonly #patterns: { readonly parts: readonly string[]; readonly methods: readonly string[] }[] = []

  /** @param pattern of a route; a segment with a leading colon matches any text */
  add(pattern: string, methods: readonly string[]): void {
    this.#patterns.push({ parts: partsOf(pattern), methods })
  }

  /** @param target of a request, including the query. Returns sorted methods. */
  at(target: string): readonly string[] {
    const parts = partsOf(target.replace(/[?#].*$/s, ''))
    const fitting = this.#patterns.filter(
      (pattern) =>
        pattern.parts.length === parts.length &&
        pattern.parts.every((part, index) => (part.startsWith(':') ? parts[index] !== '' : part === parts[index])),
    )
    return [...new Set(fitting.flatMap(({ methods }) => methods))].sort()
  }
}

/** Ignores a trailing slash. */
function partsOf(path: string): readonly string[] {
  return path.replace(/\/$/, '').split('/')
}
