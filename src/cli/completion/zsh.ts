import { type CommandShape, everyCommand } from '../shape.ts'

export function zshCompletion(program: CommandShape): string {
  const commands = [...everyCommand(program)]
  const steps = commands
    .filter(({ path }) => path.length > 0)
    .map(({ path }) => quoted(`${path.slice(0, -1).join(' ')} ${path.at(-1) ?? ''}`))
  const values: string[] = []
  const valued: string[] = []
  for (const { path, options } of commands) {
    for (const { long, takesValue, choices, isPath } of options) {
      if (!takesValue) continue
      const pattern = quoted(`${path.join(' ')} ${long}`)
      valued.push(pattern)
      if (choices.length > 0) values.push(`    ${pattern}) compadd -- ${choices.map(quoted).join(' ')}; return ;;`)
      else values.push(`    ${pattern}) ${isPath ? '_files; ' : ''}return ;;`)
    }
  }
  const words = commands.map(({ path, options, commands: below }) => {
    const rows = [
      ...below.map((each) => quoted(`${each.path.at(-1) ?? ''}:${described(each.summary)}`)),
      ...options.map(({ long, description }) => quoted(`${long}:${described(description)}`)),
    ]
    return `    ${quoted(path.join(' '))}) found=(${rows.join(' ')}) ;;`
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

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}
