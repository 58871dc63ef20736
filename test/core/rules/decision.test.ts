import { expect, test } from 'vitest'
import { type ItemOutcome, allGranted, noneGranted, tokensOf } from '../../../src/core/rules/decision.ts'

const GRANTED: ItemOutcome = { outcome: 'GRANTED', shares: [], total: 3n }
const REFUSED: ItemOutcome = { outcome: 'REFUSED', reason: 'ITEM_NOT_RATED', rejectionDetails: [] }
const NOT_CHARGED: ItemOutcome = { outcome: 'NOT_CHARGED' }

test.each([
  ['all items', [GRANTED, GRANTED], { all: true, none: false, tokens: 6n }],
  ['some items', [GRANTED, REFUSED], { all: false, none: false, tokens: 3n }],
  ['no item', [REFUSED, NOT_CHARGED], { all: false, none: true, tokens: 0n }],
])('sums up a decision that grants %s', (_name, items, expected) => {
  expect({ all: allGranted({ items }), none: noneGranted({ items }), tokens: tokensOf({ items }) }).toEqual(expected)
})
