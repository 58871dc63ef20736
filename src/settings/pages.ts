/** Generates the documentation page of all settings from the option tables. */
import { type NamedOption, namedOptions, type OptionTable, type OptionTree, usualFile } from './option.ts'

export interface Section {
  /** Such as `tallygate agent`. */
  readonly command: string
  readonly table: OptionTable<OptionTree>
}

/** Returns Markdown. */
export function configurationPage(sections: readonly Section[]): string {
  return `# Configuration

This page is generated from the option tables in the code (\`npm run docs\`).

A setting comes from a flag, or else from the environment, or else from the settings file, or else it has its default. The
settings file is [TOML](https://toml.io); \`--config\` or the variable below names it. What is not understood is refused at the
start, with the nearest known name: an unknown key or variable, and a value that a setting does not take.

A duration is a whole number with \`ms\`, \`s\`, \`m\`, \`h\` or \`d\`, a size one with \`B\`, \`KiB\`, \`MiB\`, \`GiB\` or \`TiB\`; in the file
both are text in quotes.

A running service reads its sources again on \`SIGHUP\` (\`systemctl reload\`). Settings marked *reload* change then, some only where they
were set before and are set still; a change of another one waits for a restart, and the service says so. Where anything is wrong, all stay as they are: see [operations](../how-to/operations.md).

A secret is never in the settings file itself: its key, and its flag, name a file that holds it. The environment may hold the
secret itself, in the variable without \`_FILE\`.

${sections.map(sectionText).join('\n')}`
}

function sectionText({ command, table }: Section): string {
  const rows = namedOptions(table).map(
    (named) => `| \`${named.key}\`<br>\`${named.env}\` | ${defaultOf(named)} | ${cell(describe(named))} |`,
  )
  return `## \`${command}\`

Settings file: \`--config\`, or \`${table.envPrefix}_CONFIG\`, or \`${usualFile(table)}\` if it exists. The flag of a key is the key with
dashes: ${flagExample(table)}.

| Key, variable | Default | Meaning |
| --- | --- | --- |
${rows.join('\n')}
`
}

function flagExample(table: OptionTable<OptionTree>): string {
  const [first] = namedOptions(table)
  return first === undefined ? '' : `\`${first.key}\` is \`--${first.flag}\``
}

function defaultOf({ option }: NamedOption): string {
  return option.defaultText === null ? '' : `\`${option.defaultText}\``
}

const RELOAD: Readonly<Record<string, string>> = {
  true: ' *reload*',
  'between values': ' *reload, from one to another*',
}

function describe({ option }: NamedOption): string {
  return `${option.help} Takes ${option.takes}.${RELOAD[String(option.reloadable)] ?? ''}`
}

function cell(text: string): string {
  return text.replaceAll('|', '\\|')
}
