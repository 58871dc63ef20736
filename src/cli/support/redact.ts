/**
 * A second barrier. The files of a bundle contain only text that Tallygate writes, and no secret by design: this removes the
 * device's secrets, and what looks like a credential, from names, addresses and messages in them.
 */

/** A shorter secret could match ordinary words. */
const SECRET_LENGTH_MIN = 6

const MARK = '[secret]'

/** No pattern may take quadratic time: callers of the agent cause log lines. */
const PATTERNS: readonly (readonly [RegExp, string])[] = [
  // PEM keys, also with escaped line breaks.
  [/-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z0-9 ]*PRIVATE KEY-----|$)/g, MARK],
  // Tokens and signed documents.
  [/\beyJ[\w-]{4,}[\w.-]*/g, MARK],
  [/\b(bearer|basic)\s+[\w.~+/=-]{6,}/gi, `$1 ${MARK}`],
  [/([?&](?:[\w-]{0,64}[_-])?(?:password|secret|token|key|sig|signature)=)[^&\s"'\\]+/gi, `$1${MARK}`],
]

/** A password may contain @, a space, an escaped quote, and in an address that nothing accepts /. */
const ADDRESS = /:\/\/(?:\\"|[^\n"]){1,100000}/g

export function redactor(known: readonly string[]): (text: string) => string {
  const lines = known.flatMap((secret) => secret.split(/\r?\n/))
  const secrets = [...new Set(lines.map((line) => line.trim()))]
    .filter((line) => line.length >= SECRET_LENGTH_MIN && !line.startsWith('-----'))
    .toSorted((a, b) => b.length - a.length)
  return (text) => {
    let clean = text
    for (const secret of secrets) clean = clean.replaceAll(secret, MARK)
    for (const [pattern, mark] of PATTERNS) clean = clean.replaceAll(pattern, mark)
    return clean.replaceAll(ADDRESS, withoutCredentials)
  }
}

function withoutCredentials(address: string): string {
  const at = address.lastIndexOf('@')
  return at === -1 ? address : `://${MARK}${address.slice(at)}`
}
