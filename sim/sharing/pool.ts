import { lineAccount } from '../../src/core/accounts/account.ts'

export const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
export const LINE_ITEM = 'pool'
export const ACCOUNT = lineAccount(INSTANCE, LINE_ITEM, 0)
export const TOKEN = 1_000_000n
export const BEGIN = Date.UTC(2026, 0, 5)
