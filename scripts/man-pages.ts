// The manual pages, from the tree of commands and the option tables that the programs themselves read.
import { type CommandShape, type OptionShape, everyCommand, shapeOf } from '../src/cli/shape.ts'
import type { Command } from 'commander'
import { type ErrorCode, ERRORS } from '../src/protocol/errors.ts'
import { type OptionTable, type OptionTree, namedOptions, usualFile } from '../src/settings/option.ts'

interface Tables {
  readonly agent: OptionTable<OptionTree>
  readonly cloud: OptionTable<OptionTree>
}

/** Text of each page by its name: `tallygate.1`, `tallygate-doctor.1`, `tallygate.toml.5`. */
export function manPages(program: Command, version: string, tables: Tables): ReadonlyMap<string, string> {
  const shape = shapeOf(program)
  const pages = new Map([['tallygate.1', mainPage(shape, version)]])
  for (const each of shape.commands) {
    pages.set(`${nameOf(each)}.1`, commandPage(each, version))
  }
  pages.set('tallygate.toml.5', settingsPage(version, tables))
  return pages
}

function mainPage(program: CommandShape, version: string): string {
  const commands = program.commands.map((each) => tagged(reference(nameOf(each), 1), each.summary))
  return page('tallygate', 1, version, [
    section('NAME', `tallygate \\- ${text(program.description.replace(/\.$/, ''))}`),
    section('SYNOPSIS', `.B tallygate\n.RI [ options ]\n.I command\n.RI [ arguments ]`),
    section(
      'DESCRIPTION',
      text(
        'Tallygate lets a device decide who may consume what, with or without a network, and accounts for every token exactly ' +
          'once in the cloud. This command runs the agent on the device and the service in the cloud, and administers both.',
      ),
    ),
    section('COMMANDS', commands.join('\n')),
    section('OPTIONS', program.options.map(optionText).join('\n')),
    section('EXIT STATUS', exitStatus()),
    section('ENVIRONMENT', tagged('.BR TALLYGATE_AGENT_* , TALLYGATE_CLOUD_*', 'Settings, see tallygate.toml(5).')),
    section('FILES', filesText()),
    section(
      'SEE ALSO',
      [...program.commands.map((each) => reference(nameOf(each), 1)), reference('tallygate.toml', 5)].join(' ,\n'),
    ),
  ])
}

function commandPage(command: CommandShape, version: string): string {
  const name = nameOf(command)
  const below = [...everyCommand(command)].filter((each) => each !== command)
  const parts = [
    section('NAME', `${text(name)} \\- ${text(command.summary)}`),
    section(
      'SYNOPSIS',
      [command, ...below]
        .filter(({ commands }) => commands.length === 0)
        .map(synopsis)
        .join('\n.br\n'),
    ),
    section('DESCRIPTION', text(command.description)),
    ...(command.arguments.length > 0 ? [section('ARGUMENTS', argumentsText(command))] : []),
    ...(command.options.length > 0 ? [section('OPTIONS', command.options.map(optionText).join('\n'))] : []),
    ...(below.length > 0 ? [section('COMMANDS', below.map(subcommand).join('\n'))] : []),
    section('EXIT STATUS', text('0 on success; other values are listed in tallygate(1).')),
    section('SEE ALSO', `${reference('tallygate', 1)} ,\n${reference('tallygate.toml', 5)}`),
  ]
  return page(name, 1, version, parts)
}

function subcommand(command: CommandShape): string {
  const own = [argumentsText(command), ...command.options.map(optionText)].filter((each) => each !== '')
  return `.SS ${text(command.path.slice(1).join(' '))}\n${text(command.description)}\n${own.join('\n')}`.trimEnd()
}

function settingsPage(version: string, { agent, cloud }: Tables): string {
  const table = (command: string, options: OptionTable<OptionTree>): string => {
    const rows = namedOptions(options).map(({ key, env, option }) => {
      const fallback = option.defaultText === null ? '' : ` Default: ${option.defaultText}.`
      return tagged(`.BR ${argument(key)} ", " ${argument(env)}`, `${option.help} Takes ${option.takes}.${fallback}`)
    })
    const usual = `Settings of "tallygate ${command}", in ${usualFile(options)} unless --config or ${options.envPrefix}_CONFIG names another file.`
    return `${text(usual)}\n${rows.join('\n')}`
  }
  return page('tallygate.toml', 5, version, [
    section('NAME', 'tallygate.toml \\- settings of the agent and of the cloud'),
    section(
      'DESCRIPTION',
      text(
        'Settings are TOML: tables with keys; table.key is "key" under "[table]". A flag overrides the environment, which overrides ' +
          'the file, which overrides the default. At the start, unknown names and invalid values are refused with the nearest known ' +
          'name. Durations are text such as "30s", "5m" or "24h", sizes such as "64KiB" or "8GiB". A path has no spaces around ' +
          'it. A secret is in a separate file, which its key names.',
      ),
    ),
    section('AGENT', table('agent', agent)),
    section('CLOUD', table('cloud', cloud)),
    section(
      'EXAMPLE',
      '.nf\n[socket]\npath = "/run/tallygate/agent.sock"\nmode = "0660"\n\n[status]\nport = 7090\n.fi',
    ),
    section(
      'SEE ALSO',
      `${reference('tallygate', 1)} ,\n${reference('tallygate-agent', 1)} ,\n${reference('tallygate-cloud', 1)}`,
    ),
  ])
}

function exitStatus(): string {
  const byExit = Map.groupBy(Object.keys(ERRORS) as ErrorCode[], (code) => ERRORS[code].exit)
  const rows = [...byExit]
    .filter(([exit]) => exit !== 1)
    .toSorted(([a], [b]) => a - b)
    .map(([exit, codes]) => tagged(`.B ${exit}`, `${codes.toSorted().join(', ')}.`))
  return [
    tagged('.B 0', 'Success.'),
    tagged('.B 1', 'Any other error. Of "doctor" and "status --check": the device needs attention.'),
    tagged('.B 2', 'Of "doctor": a check failed. Of "status --check": the device refuses requests.'),
    ...rows,
  ].join('\n')
}

function filesText(): string {
  return [
    tagged('.I /etc/tallygate/agent.toml', 'Settings of the agent.'),
    tagged('.I /etc/tallygate/cloud.toml', 'Settings of the cloud.'),
    tagged('.I /var/lib/tallygate/agent', 'Ledger and key of the device.'),
    tagged('.I /run/tallygate/agent.sock', 'Socket for local applications.'),
  ].join('\n')
}

function nameOf({ path }: CommandShape): string {
  return ['tallygate', ...path].join('-')
}

function synopsis({ path, usage }: CommandShape): string {
  return `.B tallygate ${path.map(text).join(' ')}\n${text(usage)}`
}

function argumentsText({ arguments: taken }: CommandShape): string {
  return taken.map(({ name, description }) => tagged(`.I ${text(name)}`, description)).join('\n')
}

function optionText({ flags, description, choices }: OptionShape): string {
  const isWhole = choices.length === 0 ? /[.)]$/ : /\.$/
  const one = choices.length === 0 ? '' : ` One of: ${choices.join(', ')}.`
  return tagged(`.B ${text(flags)}`, `${description}${isWhole.test(description) ? '' : '.'}${one}`)
}

function tagged(head: string, body: string): string {
  return `.TP\n${head}\n${text(body)}`
}

function section(title: string, body: string): string {
  return `.SH ${title.includes(' ') ? `"${title}"` : title}\n${body}`
}

function page(name: string, number: number, version: string, parts: readonly string[]): string {
  const head = `.\\" Generated from the commands themselves (npm run docs).\n.TH ${argument(name.toUpperCase())} ${number} "" "tallygate ${version}"`
  return `${[head, ...parts].join('\n')}\n`
}

function reference(name: string, number: number): string {
  return `.BR ${argument(name)} (${number})`
}

/** One argument of a macro. */
function argument(word: string): string {
  return text(word).replaceAll('"', '\\(dq')
}

/** As it is read: hyphens that can be copied, and no line that is taken for a macro. */
function text(words: string): string {
  return words
    .replaceAll(/\s+/g, ' ')
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replaceAll('’', '\\(cq')
    .replaceAll(/^([.'])/g, '\\&$1')
}
