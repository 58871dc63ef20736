import { type CommandShape, type OptionShape, everyCommand, stepsTo } from '../shape.ts'
import { shellQuoted } from '../../protocol/shell-quoted.ts'

export function bashCompletion(program: CommandShape): string {
  const commands = [...everyCommand(program)]
  const cases = (rows: readonly string[]): string => (rows.length === 0 ? '    (none) ;;' : rows.join('\n'))
  const steps = stepsTo(commands).map(shellQuoted)
  const valued = commands.flatMap(({ path, options }) =>
    options.filter(({ takesValue }) => takesValue).map((option) => ({ path, option })),
  )
  const choices = valued
    .filter(({ option }) => option.choices.length > 0)
    .map(({ path, option }) => `    ${patternOf(path, option)}) words=${shellQuoted(option.choices.join(' '))} ;;`)
  const files = valued.filter(({ option }) => option.isPath && option.choices.length === 0)
  const others = valued.filter(({ option }) => !option.isPath && option.choices.length === 0)
  const list = (rows: typeof valued): string => rows.map(({ path, option }) => patternOf(path, option)).join('|')
  const words = commands.map(({ path, options, commands: below }) => {
    const all = [...below.map((each) => each.path.at(-1) ?? ''), ...options.map(({ long }) => long), '--help']
    return `    ${shellQuoted(path.join(' '))}) words=${shellQuoted([...new Set(all)].join(' '))} ;;`
  })
  return `# Completion of tallygate for bash. Generated from the commands.
_tallygate() {
  local cur="\${COMP_WORDS[COMP_CWORD]}" prev="\${COMP_WORDS[COMP_CWORD - 1]}" at="" words="" word i
  if [[ "$prev" == "=" ]]; then prev="\${COMP_WORDS[COMP_CWORD - 2]}"; fi
  if [[ "$cur" == "=" ]]; then cur=""; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="\${COMP_WORDS[i]}"
    case "$at $word" in
    ${steps.join('|')}) at="\${at:+$at }$word" ;;
    ${valued.length === 0 ? '(none)' : list(valued)}) ((i++)) ;;
    esac
  done
  COMPREPLY=()
  case "$at $prev" in
${cases(choices)}
    ${files.length === 0 ? '(none)' : list(files)})
      compopt -o filenames 2>/dev/null || true
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
      return ;;
    ${others.length === 0 ? '(none)' : list(others)}) return ;;
    *)
      case "$at" in
${cases(words)}
      esac ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -F _tallygate tallygate
`
}

function patternOf(path: readonly string[], { long, short }: OptionShape): string {
  const names = short === null || short === long ? [long] : [long, short]
  return names.map((name) => shellQuoted(`${path.join(' ')} ${name}`)).join('|')
}
