/** The commands as plain data, the source of completion scripts and man pages. */
import type { Command, Option } from 'commander'

export interface OptionShape {
  readonly long: string
  readonly short: string | null
  readonly flags: string
  readonly takesValue: boolean
  /** Empty: any value. */
  readonly choices: readonly string[]
  readonly isPath: boolean
  readonly description: string
}

export interface CommandShape {
  readonly path: readonly string[]
  readonly summary: string
  readonly description: string
  readonly usage: string
  readonly arguments: readonly { readonly name: string; readonly description: string; readonly required: boolean }[]
  readonly options: readonly OptionShape[]
  readonly commands: readonly CommandShape[]
}

export function shapeOf(command: Command, above: readonly string[] = []): CommandShape {
  const help = command.createHelp()
  const shown = help.visibleCommands(command).filter((each) => each.name() !== 'help')
  return {
    path: above,
    summary: command.summary() === '' ? command.description() : command.summary(),
    description: command.description(),
    usage: command.usage(),
    arguments: command.registeredArguments.map((each) => {
      return { name: each.name(), description: each.description, required: each.required }
    }),
    options: help.visibleOptions(command).map(optionShape),
    commands: shown.map((each) => shapeOf(each, [...above, each.name()])),
  }
}

const PATH = /<(file|path|directory)>/

function optionShape(option: Option): OptionShape {
  const { flags, description, long, short, argChoices: choices = [] } = option
  return {
    long: long ?? short ?? flags,
    short: short ?? null,
    flags,
    takesValue: option.required || option.optional,
    choices,
    isPath: PATH.test(flags) || / Takes (a path|the path)/.test(description),
    description: defaultOf(option, description),
  }
}

function defaultOf({ defaultValue, defaultValueDescription }: Option, description: string): string {
  const shown: unknown = defaultValueDescription ?? defaultValue
  const isShown = typeof shown === 'string' || typeof shown === 'number'
  if (!isShown || description.includes('(default')) return description
  return `${description} (default: ${shown})`
}

/** Text of the line at each command: the path of its parent, then its own word. */
export function stepsTo(commands: readonly CommandShape[]): readonly string[] {
  return commands.flatMap(({ path }) =>
    path.length === 0 ? [] : [`${path.slice(0, -1).join(' ')} ${path.at(-1) ?? ''}`],
  )
}

export function* everyCommand(shape: CommandShape): Generator<CommandShape> {
  yield shape
  for (const each of shape.commands) yield* everyCommand(each)
}
