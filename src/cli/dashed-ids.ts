/**
 * Key ids are thumbprints (RFC 7638) in base64url, so one in 64 begins with a dash. Commands treat such a word as an
 * argument, not as an unknown option. Our options have no upper-case letters or digits, so no option is mistaken for a
 * thumbprint.
 */
import type { Command } from 'commander'

/** SHA-256 in base64url: a dash and 42 more characters. */
function isDashedId(word: string): boolean {
  return /^-[\w-]{42}$/.test(word) && /[A-Z0-9]/.test(word)
}

/** For commands without subcommands. Option values need no special treatment. */
export function takeDashedIds(command: Command): void {
  const parse = command.parseOptions.bind(command)
  command.parseOptions = (words) => {
    const { operands, unknown } = parse(words)
    // commander reports everything after the first unknown word as unknown, including arguments and `--`.
    const end = unknown.includes('--') ? unknown.indexOf('--') : unknown.length
    const before = unknown.slice(0, end)
    const strange = before.filter((word) => word.startsWith('-') && !isDashedId(word))
    if (strange.length > 0) return { operands, unknown: strange }
    return { operands: [...operands, ...before, ...unknown.slice(end + 1)], unknown: [] }
  }
}
