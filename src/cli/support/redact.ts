/**
 * Takes secrets out of text that leaves the device: those that are known, and everything that has the form of one. It rather
 * takes out too much: whoever reads a support bundle needs no token.
 */

/** Shorter than this, a known secret could be any word. */
const SECRET_LENGTH_MIN = 6

const MARK = '[secret]'

const PATTERNS: readonly (readonly [RegExp, string])[] = [
  // Keys in PEM, also with their line breaks escaped.
  [/-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z0-9 ]*PRIVATE KEY-----|$)/g, MARK],
  // Tokens and signed documents.
  [/\beyJ[\w-]{4,}\.[\w-]*(\.[\w-]*)*/g, MARK],
  [/\b(bearer|basic)\s+[\w.~+/=-]{6,}/gi, `$1 ${MARK}`],
  // Credentials in an address.
  [/([a-z][a-z0-9+.-]*:\/\/)[^\s/@"'\\]+@/gi, `$1${MARK}@`],
  // Private members of a JWK.
  [/(\\*"(?:d|p|q|dp|dq|qi|k)\\*"\s*:\s*\\*")[\w-]{16,}/g, `$1${MARK}`],
  // Named as one: in JSON, TOML, a query, or an assignment.
  [
    /((?:\b|_)(?:password|passwd|passphrase|secret|token|authorization|api[_-]?key|private[_-]?key)\\?["']?\s*[:=]\s*\\?["']?)(?!\[secret\])[^\s"',;&}\]\\]+/gi,
    `$1${MARK}`,
  ],
]

/** @param known secrets that this machine holds, as they stand in its files */
export function redactor(known: readonly string[]): (text: string) => string {
  const lines = known.flatMap((secret) => secret.split(/\r?\n/))
  const secrets = [...new Set(lines.map((line) => line.trim()))]
    .filter((line) => line.length >= SECRET_LENGTH_MIN && !line.startsWith('-----'))
    .toSorted((a, b) => b.length - a.length)
  return (text) => {
    let clean = text
    for (const secret of secrets) clean = clean.replaceAll(secret, MARK)
    for (const [pattern, mark] of PATTERNS) clean = clean.replaceAll(pattern, mark)
    return clean
  }
}
