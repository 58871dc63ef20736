/** The commands as plain data, from the tree that parses them: what completion scripts and manual pages are made of. */
import type { Command, Option } from 'commander'

export interface OptionShape {
  /** `--level`; there is always one. */
  readonly long: string
  readonly short: string | null
  /** As help shows it: `--level <level>`. */
  readonly flags: string
  readonly takesValue: boolean
  /** Empty: anything. */
  readonly choices: readonly string[]
  /** The value is the path of a file or a directory. */
  readonly isPath: boolean
  readonly description: string
}

export interface CommandShape {
  /** Words before the options: `['devices', 'list']`; empty for the program itself. */
  readonly path: readonly string[]
  readonly summary: string
  readonly description: string
  /** `[options] <id>` */
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

/** As help adds it, where the description does not say it. */
function defaultOf({ defaultValue }: Option, description: string): string {
  const isShown = typeof defaultValue === 'string' || typeof defaultValue === 'number'
  return isShown && !description.includes('(default') ? `${description} (default: ${defaultValue})` : description
}

/** A command and all below it, itself first. */
export function* everyCommand(shape: CommandShape): Generator<CommandShape> {
  yield shape
  for (const each of shape.commands) yield* everyCommand(each)
}
