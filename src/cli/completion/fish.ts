import { type CommandShape, everyCommand, stepsTo } from '../shape.ts'

export function fishCompletion(program: CommandShape): string {
  const commands = [...everyCommand(program)]
  const lines = commands.flatMap(({ path, options, commands: below }) => {
    const here = `complete -c tallygate -n ${quoted(`__tallygate_at ${path.join(' ')}`.trimEnd())}`
    return [
      ...below.map((each) => `${here} -f -a ${each.path.at(-1) ?? ''} -d ${quoted(each.summary)}`),
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
  const steps = stepsTo(commands).map(quoted)
  const valued = commands.flatMap(({ path, options }) =>
    options
      .filter(({ takesValue }) => takesValue)
      .flatMap(({ long, short }) => [long, ...(short === null ? [] : [short])])
      .map((name) => quoted(`${path.join(' ')} ${name}`)),
  )
  return `# Completion of tallygate for fish. Generated from the commands.
complete -c tallygate -f

# True if the words so far lead to exactly this command.
function __tallygate_at
    set -l at ''
    set -l is_value 0
    set -l words (commandline -opc)
    for word in $words[2..]
        if test $is_value = 1
            set is_value 0
            continue
        end
        switch "$at $word"
            case ${steps.join(' ')}
                set at (string trim -- "$at $word")
            case ${valued.length === 0 ? "'(none)'" : valued.join(' ')}
                set is_value 1
        end
    end
    test "$at" = "$argv"
end

${lines.join('\n')}
`
}

function quoted(text: string): string {
  return `'${text.replaceAll(/\s+/g, ' ').replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
}
