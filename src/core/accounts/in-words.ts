import { type Micro, formatMicro, wholeTokens } from '../pricing/amount.ts'
import { type AccountId, parseAccount } from './account.ts'

const TIME_UNITS = [
  ['days', 86_400_000],
  ['hours', 3_600_000],
  ['minutes', 60_000],
  ['seconds', 1_000],
] as const

const TENTH = wholeTokens(1) / 10n
const HUNDREDTH = wholeTokens(1) / 100n

const SIZE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB']

export function counted(count: number, one: string, many: string): string {
  return `${grouped(count)} ${count === 1 ? one : many}`
}

/** With separators between groups of digits before the point. */
export function grouped(decimal: number | string): string {
  return String(decimal).replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, ',')
}

/** In the largest unit with a value of at least two, rounded down. */
export function roughly(ms: number): string {
  const [unit, size] = TIME_UNITS.find(([, each]) => ms >= 2 * each) ?? TIME_UNITS[3]
  const whole = Math.floor(ms / size)
  return whole === 1 ? '1 second' : `${whole} ${unit}`
}

/** One fractional digit below 100 of its unit. */
export function sizeInWords(bytes: number): string {
  const power = bytes < 1 ? 0 : Math.min(SIZE_UNITS.length - 1, Math.floor(Math.log2(bytes) / 10))
  const value = bytes / 1024 ** power
  return `${power === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${SIZE_UNITS[power] ?? ''}`
}

/** With grouped digits, rounded down: to tenths from 1,000 on, to hundredths from 10 on, else exact. */
export function tokensInWords(amount: Micro): string {
  const isNegative = amount < 0n
  const magnitude = isNegative ? -amount : amount
  const unit = magnitude >= wholeTokens(1_000) ? TENTH : magnitude >= wholeTokens(10) ? HUNDREDTH : 1n
  const shown = magnitude - (magnitude % unit)
  return `${isNegative ? '-' : ''}${grouped(formatMicro(shown))}`
}

/** Line item and kind; an unknown id is returned unchanged. @param actionName null: the id of the action is shown */
export function accountInWords(account: AccountId, actionName: string | null = null): string {
  const parsed = parseAccount(account)
  switch (parsed?.kind) {
    case 'line':
      return parsed.lineItemId
    case 'action':
      return `${parsed.lineItemId}, action ${actionName ?? parsed.actionId}`
    case 'limit':
      return `${parsed.lineItemId}, ${parsed.requester.type} ${parsed.requester.value}`
    case undefined:
      return account
  }
}
