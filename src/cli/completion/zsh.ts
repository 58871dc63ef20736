import { type CommandShape, everyCommand, stepsTo } from '../shape.ts'
import { shellQuoted } from '../../protocol/shell-quoted.ts'

export function zshCompletion(program: CommandShape): string {
  const commands = [...everyCommand(program)]
  const steps = stepsTo(commands).map(shellQuoted)
  const values: string[] = []
  const valued: string[] = []
  for (const { path, options } of commands) {
    for (const { long, takesValue, choices, isPath } of options) {
      if (!takesValue) continue
      const pattern = shellQuoted(`${path.join(' ')} ${long}`)
      valued.push(pattern)
      if (choices.length > 0) values.push(`    ${pattern}) compadd -- ${choices.map(shellQuoted).join(' ')}; return ;;`)
      else values.push(`    ${pattern}) ${isPath ? '_files; ' : ''}return ;;`)
    }
  }
  const words = commands.map(({ path, options, commands: below }) => {
    const rows = [
      ...below.map((each) => shellQuoted(`${each.path.at(-1) ?? ''}:${described(each.summary)}`)),
      ...options.map(({ long, description }) => shellQuoted(`${long}:${described(description)}`)),
    ]
    return `    ${shellQuoted(path.join(' '))}) found=(${rows.join(' ')}) ;;`
  })
  return `#compdef tallygate
# Completion of tallygate for zsh. Generated from the commands.
_tallygate() {
  local at="" word i
  local -a found
  for ((i = 2; i < CURRENT; i++)); do
    word="\${words[i]}"
    case "$at $word" in
    ${steps.join('|')}) at="\${at:+$at }$word" ;;
    ${valued.length === 0 ? "'(none)'" : valued.join('|')}) ((i++)) ;;
    esac
  done
  case "$at \${words[CURRENT - 1]}" in
${values.join('\n')}
  esac
  case "$at" in
${words.join('\n')}
  esac
  _describe -V tallygate found
}
_tallygate "$@"
`
}

function described(text: string): string {
  return text.replaceAll(/\s+/g, ' ').replaceAll(':', '\\:')
}
