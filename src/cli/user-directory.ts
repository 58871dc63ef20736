import { userInfo } from 'node:os'
import { isAbsolute, join } from 'node:path'
import { CodedError } from '../protocol/errors.ts'
import type { Io } from './io.ts'

const BELOW_HOME = { XDG_CONFIG_HOME: '.config', XDG_STATE_HOME: '.local/state' } as const

/** The folder of this program in an XDG base directory of the user. @throws CodedError USAGE */
export function userDirectory(variable: keyof typeof BELOW_HOME, { env }: Pick<Io, 'env'>): string {
  const base = env[variable] ?? ''
  if (isAbsolute(base)) return join(base, 'tallygate')
  const home = env['HOME'] ?? ''
  return join(isAbsolute(home) ? home : homeOfUser(variable), BELOW_HOME[variable], 'tallygate')
}

/** In a container, the user may be unknown. */
function homeOfUser(variable: string): string {
  try {
    return userInfo().homedir
  } catch (cause) {
    throw new CodedError('USAGE', `This user has no home directory. Set ${variable} or HOME to a directory.`, { cause })
  }
}
