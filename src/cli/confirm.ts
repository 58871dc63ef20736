import type { Command } from 'commander'
import { CodedError } from '../protocol/errors.ts'
import type { Io } from './io.ts'
import { harmless } from './lines.ts'

export interface ConfirmFlags {
  readonly yes?: true
}

export function withConfirmation(command: Command): Command {
  return command.option('--yes', 'do it without a question')
}

/**
 * Whether to do it: `--yes`, or the user agrees.
 * @param consequence sentence that the question begins with
 * @throws CodedError USAGE if there is no terminal to ask on
 */
export async function isConfirmed(
  consequence: string,
  action: string,
  { yes }: ConfirmFlags,
  io: Io,
): Promise<boolean> {
  if (yes === true) return true
  const answer = io.ask(harmless(`${consequence} Run ${action}? [y/N] `))
  if (answer === null) throw new CodedError('USAGE', `${consequence} Repeat with --yes to run ${action}.`)
  if (/^\s*y(es)?\s*$/i.test(await answer)) return true
  io.stderr.write('Nothing was changed.\n')
  io.exitWith(1)
  return false
}
