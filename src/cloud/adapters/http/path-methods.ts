/** Which methods the paths of a server take: what it needs to tell a wrong method from a wrong path. */
export class PathMethods {
  readonly #patterns: { readonly parts: readonly string[]; readonly methods: readonly string[] }[] = []

  /** @param pattern of a route; a part that begins with a colon stands for any text */
  add(pattern: string, methods: readonly string[]): void {
    this.#patterns.push({ parts: partsOf(pattern), methods })
  }

  /** @param target of a request, query included. Returns the methods in the order of their names. */
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

/** A slash at the end makes no difference. */
function partsOf(path: string): readonly string[] {
  return path.replace(/\/$/, '').split('/')
}
