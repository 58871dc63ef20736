// Low and empty line items are conditions of the device, unless the cloud refills them.
import { describe, expect, it } from 'vitest'
import { LOW_MS, tokenConditions } from '../../../src/agent/diagnostics/token-supply.ts'
import type { Supply } from '../../../src/agent/ledger/demand.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { wholeTokens } from '../../../src/core/pricing/amount.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'

const supply = (changes: Partial<Supply> = {}): Supply => ({
  account: lineAccount(INSTANCE, 'LW-ANNUAL', 0),
  left: wholeTokens(120),
  quantity: wholeTokens(1_000),
  lastsMs: null,
  exhausted: true,
  ...changes,
})

function conditions(of: readonly Supply[], connected = true) {
  return tokenConditions(of, connected, 5)
}
const codes = (changes: Partial<Supply>, connected = true) =>
  conditions([supply(changes)], connected).map(({ code }) => code)

describe('a line item', () => {
  it('whose pool has more is refilled at any balance while the device is connected', () => {
    expect(codes({ exhausted: false, left: 0n, lastsMs: 0 })).toEqual([])
    expect(codes({ exhausted: false, left: 0n }, false)).toEqual(['TOKENS_USED_UP'])
    expect(codes({ exhausted: false, lastsMs: 1 }, false)).toEqual(['TOKENS_LOW'])
  })

  it.each([
    ['that is used up', { left: 0n, lastsMs: 0 }, ['TOKENS_USED_UP']],
    ['that lasts for less than a day', { lastsMs: LOW_MS - 1 }, ['TOKENS_LOW']],
    ['that lasts for a day', { lastsMs: LOW_MS }, []],
    ['with less than a twentieth, of unknown use', { left: wholeTokens(50) - 1n }, ['TOKENS_LOW']],
    ['with a twentieth, of unknown use', { left: wholeTokens(50) }, []],
    ['with little that lasts', { left: 1n, lastsMs: LOW_MS }, []],
  ])('%s', (_name, changes, expected) => {
    expect(codes(changes)).toEqual(expected)
  })

  it('is named with its remaining tokens, how long they last, and why it gets no more', () => {
    const messages = (connected: boolean) =>
      conditions(
        [
          supply({ left: wholeTokens(12_345), lastsMs: 3 * 3_600_000 }),
          supply({ left: 0n, account: lineAccount(INSTANCE, 'LW-WORKBENCH', 2) }),
        ],
        connected,
      ).map(({ subject, message }) => `${subject}: ${message}`)
    expect(messages(true)).toEqual([
      'tokens of LW-ANNUAL: The line item LW-ANNUAL has 12,345 tokens left on this device, enough for about 3 hours at the current rate. Its pool in the cloud has no more.',
      'tokens of LW-WORKBENCH: The tokens of the line item LW-WORKBENCH are used up, and its pool in the cloud has no more.',
    ])
    expect(messages(false)[0]).toContain('The device is offline, so they are not refilled.')
  })
})
