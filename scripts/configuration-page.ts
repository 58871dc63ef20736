import { type NamedOption, namedOptions, type OptionTable, type OptionTree, usualFile } from '../src/settings/option.ts'

export interface Section {
  readonly command: string
  readonly table: OptionTable<OptionTree>
}

export function configurationPage(sections: readonly Section[]): string {
  return `# Configuration

This page is generated from the option tables in the code (\`npm run docs\`).

A flag overrides the environment, which overrides the settings file, which overrides the default. The settings file is
[TOML](https://toml.io); \`--config\` or the variable below names it. At the start, a service refuses unknown keys and variables, with the
nearest known name, and values that a setting does not accept.

A duration is a whole number with \`ms\`, \`s\`, \`m\`, \`h\` or \`d\`. A size is a whole number with \`B\`, \`KiB\`, \`MiB\`, \`GiB\` or \`TiB\`.
Quote both in the file. A path has no spaces around it.

A running service reads its settings again on \`SIGHUP\` (\`systemctl reload\`) and applies settings marked *reload*. A setting marked
*reload, between values* changes only if it had a value before and still has one. Other changes wait for a restart, and the service
logs them. If any setting is invalid, all settings stay unchanged: see the reload of
[an agent](../how-to/operate-devices.md#reload-the-settings) and of [the cloud](../how-to/operate-the-cloud.md#reload-the-settings).

A secret is never in the settings file: its key, or its flag, names a file that contains it. The environment may contain the secret
itself, in the variable without \`_FILE\`.

${sections.map(sectionText).join('\n')}`
}

function sectionText({ command, table }: Section): string {
  const [first] = namedOptions(table)
  const rows = namedOptions(table).map(
    (named) =>
      `| \`${named.key}\`<br>\`${named.env}\` | ${defaultOf(named)} | ${describe(named).replaceAll('|', '\\|')} |`,
  )
  return `## \`${command}\`

Settings file: \`--config\`, or \`${table.envPrefix}_CONFIG\`, or \`${usualFile(table)}\` if it exists. The flag of a key is the key with
dashes: ${first === undefined ? '' : `\`${first.key}\` is \`--${first.flag}\``}.

| Key, variable | Default | Meaning |
| --- | --- | --- |
${rows.join('\n')}
`
}

function defaultOf({ option }: NamedOption): string {
  return option.defaultText === null ? '' : `\`${option.defaultText}\``
}

const RELOAD: Readonly<Record<string, string>> = {
  true: ' *reload*',
  'between values': ' *reload, between values*',
}

function describe({ option }: NamedOption): string {
  return `${option.help} Takes ${option.takes}.${RELOAD[String(option.reloadable)] ?? ''}`
}
