import type { Command } from 'commander'

export function examples(command: Command, lines: readonly string[]): Command {
  const shown = lines.map((line) => `  ${line}\n`).join('')
  return command.addHelpText('after', `\nExamples:\n${shown}`.trimEnd())
}
