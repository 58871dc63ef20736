/** Users and groups of this system by name, as /etc/passwd and /etc/group have them. */
import { readFileSync } from 'node:fs'
import type { Names } from '../../app/callers/who.ts'

export function systemNames(passwd = '/etc/passwd', group = '/etc/group'): Names {
  return { user: (name) => idIn(passwd, name), group: (name) => idIn(group, name) }
}

/** In both files the name is the first field of a line and the number the third. */
function idIn(path: string, name: string): number | undefined {
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch {
    return undefined
  }
  for (const line of text.split('\n')) {
    const [found, , id = ''] = line.split(':')
    if (found === name && /^\d+$/.test(id)) return Number(id)
  }
  return undefined
}
