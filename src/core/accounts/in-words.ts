/** Lengths of time, sizes and accounts as people read them, on every surface in the same words. For programs there is JSON. */
import { type AccountId, parseAccount } from './account.ts'

const TIME_UNITS = [
  ['days', 86_400_000],
  ['hours', 3_600_000],
  ['minutes', 60_000],
  ['seconds', 1_000],
] as const

const SIZE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB']

/** A length of time in ms, in the largest unit of which there are two or more, rounded down. */
export function roughly(ms: number): string {
  const [unit, size] = TIME_UNITS.find(([, each]) => ms >= 2 * each) ?? TIME_UNITS[3]
  return `${Math.floor(ms / size)} ${unit}`
}

/** A size in bytes, with one digit after the point below 100 of its unit. */
export function sizeInWords(bytes: number): string {
  const power = bytes < 1 ? 0 : Math.min(SIZE_UNITS.length - 1, Math.floor(Math.log2(bytes) / 10))
  const value = bytes / 1024 ** power
  return `${power === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${SIZE_UNITS[power] ?? ''}`
}

/** The line item, and which part of it; the id itself where it is none that this project makes. */
export function accountInWords(account: AccountId): string {
  const parsed = parseAccount(account)
  switch (parsed?.kind) {
    case 'line':
      return parsed.lineItemId
    case 'action':
      return `${parsed.lineItemId}, action ${parsed.actionId}`
    case 'limit':
      return `${parsed.lineItemId}, ${parsed.requester.type} ${parsed.requester.value}`
    case undefined:
      return account
  }
}
