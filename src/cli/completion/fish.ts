/** The completion script for fish, with the summaries of commands and options. */
import { type CommandShape, everyCommand } from '../shape.ts'

export function fishCompletion(program: CommandShape): string {
  const lines = [...everyCommand(program)].flatMap(({ path, options, commands }) => {
    const here = `complete -c tallygate -n ${quoted(conditionOf(path, commands))}`
    return [
      ...commands.map((each) => `${here} -f -a ${each.path.at(-1) ?? ''} -d ${quoted(each.summary)}`),
      ...options.map(({ long, short, takesValue, choices, isPath, description }) => {
        const name = `-l ${long.replace(/^--/, '')}${short === null ? '' : ` -s ${short.replace(/^-/, '')}`}`
        const value = !takesValue
          ? ''
          : isPath
            ? ' -r -F'
            : choices.length > 0
              ? ` -x -a ${quoted(choices.join(' '))}`
              : ' -x'
        return `${here} ${name}${value} -d ${quoted(description)}`
      }),
    ]
  })
  return `# Completion of tallygate for fish. Generated from the commands themselves.
complete -c tallygate -f
${lines.join('\n')}
`
}

/** Where the words of the path were given, and none of the commands below it. */
function conditionOf(path: readonly string[], below: CommandShape['commands']): string {
  const seen = path.map((word) => `__fish_seen_subcommand_from ${word}`)
  const names = below.map((each) => each.path.at(-1) ?? '')
  const unseen = names.length === 0 ? [] : [`not __fish_seen_subcommand_from ${names.join(' ')}`]
  const all = [...seen, ...unseen]
  return all.length === 0 ? 'true' : all.join('; and ')
}

function quoted(text: string): string {
  return `'${text.replaceAll(/\s+/g, ' ').replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
}
