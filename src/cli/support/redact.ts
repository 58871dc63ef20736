/** Removes known secrets, and everything that looks like one, from text that leaves the device. Rather too much. */
import { redactNamed } from './redact-named.ts'

/** A shorter secret could match ordinary words. */
const SECRET_LENGTH_MIN = 6

const MARK = '[secret]'

/** No pattern may take quadratic time: callers of the agent cause log lines. */
const PATTERNS: readonly (readonly [RegExp, string])[] = [
  // PEM keys, also with escaped line breaks.
  [
    /---- ?BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?-{4,5}[\s\S]*?(-{4,5} ?END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?-{4,5}|$)/g,
    MARK,
  ],
  // Tokens and signed documents.
  [/\beyJ[\w-]{4,}[\w.-]*/g, MARK],
  [/\b(?:gh[opsu]_|github_pat_|glpat-|xox[abeoprs]-)[\w-]{10,}/g, MARK],
  [/\b(bearer|basic)\s+[\w.~+/=-]{6,}/gi, `$1 ${MARK}`],
  // Credentials in an address. A password may contain @, a space, an escaped quote, and in an address that nothing accepts /.
  [/(:\/\/)(?:\\"|[^\n"]){1,500}@/g, `$1${MARK}@`],
  [/([?&](?:sig|key|x-amz-signature|x-goog-signature)=)[^&\s"'\\]+/gi, `$1${MARK}`],
  // Options of curl and Mosquitto.
  [/(\s(?:-[uU]|--(?:proxy-)?user)[ =]?(\\*["'])[^\s"':]{1,100}:)[^\n]{1,500}?(?=\2)/g, `$1${MARK}`],
  [/(\s(?:-[uU]|--(?:proxy-)?user)[ =]?[^\s"':]{1,100}:)[^\s"'[\\][^\s"'\\]*/g, `$1${MARK}`],
  [/(\bmosquitto_[a-z]{1,10}\s[^\n]{0,500}?\s?(?:-P|--pw)[ =]?\\*["']?)[^\s"'\\]+/g, `$1${MARK}`],
  // The file .netrc.
  [/(\b(?:machine|login|account)\s{1,64}\S{1,200}\s{1,64}password\s{1,64})(?:"[^"\n]{0,500}|\S+)/g, `$1${MARK}`],
  // Private members of a JWK, and logins of Docker.
  [/("(?:d|p|q|dp|dq|qi|k|auth)\\*"\s*:\s*\\*")[\w-]{16,}/g, `$1${MARK}`],
]

export function redactor(known: readonly string[]): (text: string) => string {
  const lines = known.flatMap((secret) => secret.split(/\r?\n/))
  const secrets = [...new Set(lines.map((line) => line.trim()))]
    .filter((line) => line.length >= SECRET_LENGTH_MIN && !line.startsWith('-----'))
    .toSorted((a, b) => b.length - a.length)
  return (text) => {
    let clean = text
    for (const secret of secrets) clean = clean.replaceAll(secret, MARK)
    for (const [pattern, mark] of PATTERNS) clean = clean.replaceAll(pattern, mark)
    return redactNamed(clean, MARK)
  }
}
