/** Resolves users and groups with /etc/passwd and /etc/group. */
import { readFileSync } from 'node:fs'
import { orNull } from '../../../platform/or-null.ts'
import type { Names } from '../../access/callers/caller-selector.ts'

export function systemNames(passwd = '/etc/passwd', group = '/etc/group'): Names {
  return { user: (name) => idIn(passwd, name), group: (name) => idIn(group, name) }
}

export function userOf(uid: number): string | undefined {
  return linesOf('/etc/passwd').find(([, , id]) => id === String(uid))?.[0]
}

/** In both files, field 1 is the name and field 3 the number. */
function idIn(path: string, name: string): number | undefined {
  for (const [found, , id = ''] of linesOf(path)) if (found === name && /^\d+$/.test(id)) return Number(id)
  return undefined
}

function linesOf(path: string): readonly (readonly string[])[] {
  const text = orNull(() => readFileSync(path, 'utf8')) ?? ''
  return text.split('\n').map((line) => line.split(':'))
}
