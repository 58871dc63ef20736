/** Options of the commands that print a list, and the width of their tables. */
import { type Command, Option } from 'commander'
import type { Io } from './io.ts'

export interface ListFlags {
  readonly json?: true
  readonly wide?: true
}

export function withListOptions(command: Command, json = 'print one JSON document per line'): Command {
  return command
    .addOption(new Option('--wide', 'show all columns, also those that do not fit the terminal').conflicts('json'))
    .option('--json', json)
}

/** Of a terminal whose size is known. Nothing is cut elsewhere. */
export function widthFor({ wide }: ListFlags, { stdout }: Pick<Io, 'stdout'>): number | undefined {
  return wide === true || stdout.isTTY !== true || stdout.columns === 0 ? undefined : stdout.columns
}

/** Of a list that the service ends. */
export function endText(count: number, several: string): string {
  return `The list ends after the newest ${count} ${several}: there may be more.\n`
}
