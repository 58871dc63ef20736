/**
 * Ids of keys that begin with a dash. They are thumbprints (RFC 7638) in base64url, so one of 64 does; on a command line
 * such a word is an argument, never an unknown option. An option has no upper-case letter and no digit, so none is taken
 * for a thumbprint.
 */
import type { Command } from 'commander'

/** A dash and 42 more characters: SHA-256 in base64url. */
function isDashedId(word: string): boolean {
  return /^-[\w-]{42}$/.test(word) && /[A-Z0-9]/.test(word)
}

/** Makes a command that has no commands below it take such ids as arguments. Values of options are theirs already. */
export function takeDashedIds(command: Command): void {
  const parse = command.parseOptions.bind(command)
  command.parseOptions = (words) => {
    const { operands, unknown } = parse(words)
    // From the first word that is not understood, all that follow are reported as such, arguments and `--` too.
    const end = unknown.includes('--') ? unknown.indexOf('--') : unknown.length
    const before = unknown.slice(0, end)
    const strange = before.filter((word) => word.startsWith('-') && !isDashedId(word))
    if (strange.length > 0) return { operands, unknown: strange }
    return { operands: [...operands, ...before, ...unknown.slice(end + 1)], unknown: [] }
  }
}
