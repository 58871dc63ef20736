/** A service's flags come from its option table: each flag is the settings key with dashes. */
import { existsSync } from 'node:fs'
import { Command, Option } from 'commander'
import { loadSettings } from '../settings/load.ts'
import { namedOptions, type OptionTable, type OptionTree, type Settings, usualFile } from '../settings/option.ts'
import type { Io } from './io.ts'

export function serviceCommand(name: string, table: OptionTable<OptionTree>): Command {
  const command = new Command(name)
    .optionsGroup('Settings file:')
    .option(
      '--config <file>',
      `TOML file with settings (default: ${table.envPrefix}_CONFIG, or ${usualFile(table)} if it exists)`,
    )
  for (const { key, flag, option } of namedOptions(table)) {
    const [group = '', ...rest] = key.split('.')
    const fallback = option.defaultText === null ? '' : ` (default: ${option.defaultText})`
    command.optionsGroup(rest.length === 0 ? 'General:' : `${group}:`)
    command.addOption(new Option(`--${flag} <value>`, `${option.help} Takes ${option.takes}.${fallback}`))
  }
  return command.addHelpText(
    'after',
    `\nFlags override environment variables (${table.envPrefix}_...), which override the settings file.`,
  )
}

export function settingsOf<T extends OptionTree>(command: Command, table: OptionTable<T>, io: Io): Settings<T> {
  const given = command.opts<Record<string, string | undefined>>()
  const flags: Record<string, string> = {}
  for (const { flag } of namedOptions(table)) {
    const value = given[new Option(`--${flag} <value>`).attributeName()]
    if (value !== undefined) flags[flag] = value
  }
  const file = given['config'] ?? settingsFile(table, io)
  return loadSettings(table, { file, flags, env: io.env, readText: io.readText })
}

export function foundSettings<T extends OptionTree>(
  table: OptionTable<T>,
  { env, readText }: Io,
  whole?: OptionTable<OptionTree>,
): Settings<T> {
  const file = settingsFile(table, { env })
  return loadSettings(table, { file, flags: {}, env, readText, ...(whole === undefined ? {} : { whole }) })
}

export function settingsFile(table: OptionTable<OptionTree>, { env }: Pick<Io, 'env'>): string | null {
  const usual = usualFile(table)
  return env[`${table.envPrefix}_CONFIG`] ?? (existsSync(usual) ? usual : null)
}
