export function queryText(values: Readonly<Record<string, string | number | boolean | null | undefined>>): string {
  const given = Object.entries(values).flatMap(([name, value]) =>
    value === null || value === undefined ? [] : [[name, String(value)]],
  )
  return new URLSearchParams(given).toString()
}

export interface Call {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  readonly path: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  /** Timeout for silence of the server, in place of the client's. */
  readonly timeoutMs?: number
}
