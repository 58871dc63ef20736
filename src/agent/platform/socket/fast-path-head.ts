/** Parses a request head for the fast path. Any unusual form is left to Node's parser. */
import type { Route } from './routes.ts'
import { route } from './routes.ts'

export interface FastPathHead {
  readonly target: Extract<Route, { to: 'access' }>
  /** Names in lower case. A repeated header makes the head unusual. */
  readonly headers: Readonly<Record<string, string>>
  readonly bodyBytes: number
}

const REQUEST_LINE = /^POST (\/[\x21-\x7e]*) HTTP\/1\.1$/
const HEADER = /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x20-\x7e]*)$/
const LENGTH = /^\d{1,9}$/

/** Headers that change the message framing or the connection. */
const FRAMING = [
  'transfer-encoding',
  'trailer',
  'te',
  'upgrade',
  'expect',
  'keep-alive',
  'proxy-connection',
  'http2-settings',
]

/** Undefined for anything but a plain access request with a known body length on a keep-alive connection. */
export function fastPathHead(text: string): FastPathHead | undefined {
  const [requestLine = '', ...lines] = text.split('\r\n')
  const url = REQUEST_LINE.exec(requestLine)?.[1]
  if (url === undefined) return undefined
  const target = route('POST', url)
  if (target.to !== 'access') return undefined
  const headers: Record<string, string> = Object.create(null) as Record<string, string>
  for (const line of lines) {
    const [, name, value] = HEADER.exec(line) ?? []
    if (name === undefined || value === undefined) return undefined
    const key = name.toLowerCase()
    if (key in headers) return undefined
    headers[key] = value.trimEnd()
  }
  const { host, connection = 'keep-alive', 'content-length': length = '' } = headers
  if (host === undefined || connection.toLowerCase() !== 'keep-alive' || !LENGTH.test(length)) return undefined
  if (FRAMING.some((name) => name in headers)) return undefined
  return { target, headers, bodyBytes: Number(length) }
}
