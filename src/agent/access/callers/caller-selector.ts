/** Lists of callers in settings: `*`, `user:anna`, `uid:1000`, `group:plant`, `gid:50`, separated by commas. */
import { CodedError } from '../../../protocol/errors.ts'

export interface Names {
  user(name: string): number | undefined
  group(name: string): number | undefined
}

export type CallerSelector = (caller: { readonly uid: number; readonly gids: readonly number[] }) => boolean

const ONE = /^(user|uid|group|gid):([^\s:,;]+)$/

/** @throws CodedError CONFIG_INVALID, also for an unknown name */
export function parseCallerSelector(key: string, text: string, names: Names): CallerSelector {
  const any = text.split(',').map((each) => parseOne(key, each.trim(), names))
  return (caller) => any.some((matches) => matches(caller))
}

function parseOne(key: string, text: string, names: Names): CallerSelector {
  if (text === '*') return () => true
  const [, kind, name = ''] = ONE.exec(text) ?? []
  if (kind === 'uid' || kind === 'gid') {
    if (!/^\d{1,10}$/.test(name)) throw invalid(key, `${text} is no number of a user or group`)
    const id = Number(name)
    return kind === 'uid' ? ({ uid }) => uid === id : ({ gids }) => gids.includes(id)
  }
  if (kind !== 'user' && kind !== 'group') {
    throw invalid(key, `${JSON.stringify(text)} is not one of *, user:NAME, uid:N, group:NAME, gid:N`)
  }
  const id = names[kind](name)
  if (id === undefined) throw invalid(key, `this system has no ${kind} ${name}`)
  return kind === 'user' ? ({ uid }) => uid === id : ({ gids }) => gids.includes(id)
}

export function invalid(key: string, why: string): CodedError {
  return new CodedError('CONFIG_INVALID', `${key}: ${why}.`)
}
