/** The checks that decide one item, in order; the first one that fails refuses it. */
export const ITEM_CHECKS = {
  RATED: 'a rate table in effect has the item with exactly this version',
  USABLE: 'an elastic, deployed line item in its window draws on a series that rates it',
  PRICED: 'its rate can be worked out',
  ALLOWED: 'the actions of such a line item allow the requester',
  TOKENS: 'the pools of those line items have enough tokens',
  ALLOCATION: '... also within the allocation of the action that allows',
  LIMIT: '... also within the consumption limit of the requester',
} as const
export type ItemCheck = keyof typeof ITEM_CHECKS

interface Reason {
  readonly check: ItemCheck
  /** When the same request may succeed: after a change by an administrator, when tokens return, or online. */
  readonly retry: 'NEVER' | 'LATER' | 'ONLINE'
  /** Status code of the service API; v1.1 has a zero after the first digit. */
  readonly code: `2${string}`
  readonly label: string
  readonly text: string
}

/** Every reason for which an item is refused. */
export const REFUSAL_REASONS = {
  ITEM_NOT_RATED: {
    check: 'RATED',
    retry: 'NEVER',
    code: '201',
    label: 'in no rate table in effect',
    text: 'Item not found in any effective rate table',
  },
  NO_USABLE_LINE_ITEM: {
    check: 'USABLE',
    retry: 'NEVER',
    code: '206',
    label: 'no usable line item',
    text: 'No usable line item',
  },
  CLOCK_UNDECIDED: {
    check: 'USABLE',
    retry: 'ONLINE',
    code: '210',
    label: 'clock undecided',
    text: 'Clock not trusted and policy refuses; retry online',
  },
  FORMULA_FAILED: {
    check: 'PRICED',
    retry: 'NEVER',
    code: '207',
    label: 'formula failed',
    text: 'Formula could not be evaluated',
  },
  DENIED_BY_RULE: {
    check: 'ALLOWED',
    retry: 'NEVER',
    code: '203',
    label: 'by rule of access',
    text: 'Denied by rule of access',
  },
  INSUFFICIENT_TOKENS: {
    check: 'TOKENS',
    retry: 'LATER',
    code: '202',
    label: 'tokens of the pool used up',
    text: 'Insufficient tokens',
  },
  GRANT_EXHAUSTED: {
    check: 'TOKENS',
    retry: 'ONLINE',
    code: '208',
    label: 'tokens on the device used up',
    text: 'Tokens granted to this device used up; retry online',
  },
  GRANT_EXPIRED: {
    check: 'TOKENS',
    retry: 'ONLINE',
    code: '209',
    label: 'grant expired',
    text: 'Grant of this device expired; retry online',
  },
  DEVICE_REFUSED: {
    check: 'TOKENS',
    retry: 'NEVER',
    code: '212',
    label: 'device refused by the cloud',
    text: 'Tokens granted to this device used up, and the cloud refuses its key; see tallygate status on the device',
  },
  POOL_IN_RECOVERY: {
    check: 'TOKENS',
    retry: 'LATER',
    code: '211',
    label: 'pool in recovery',
    text: 'Tokens withheld: the cloud was restored from a backup and may have sold them before; an administrator can end the recovery',
  },
  COUNTER_FULL: {
    check: 'TOKENS',
    retry: 'NEVER',
    code: '213',
    label: 'counter full',
    text: 'More tokens than a line item with unlimited overdraft can count: at most a billion in a request, and 576 billion in an epoch of a device; see "If a counter is full" in docs/how-to/operate-devices.md',
  },
  ALLOCATION_EXHAUSTED: {
    check: 'ALLOCATION',
    retry: 'LATER',
    code: '204',
    label: 'allocation used up',
    text: 'Allocation exhausted',
  },
  CONSUMPTION_LIMIT_REACHED: {
    check: 'LIMIT',
    retry: 'LATER',
    code: '205',
    label: 'consumption limit reached',
    text: 'Consumption limit reached',
  },
} as const satisfies Readonly<Record<string, Reason>>

export type RefusalReason = keyof typeof REFUSAL_REASONS

/** @param status of a usage record */
export function isRefusal(status: string): status is RefusalReason {
  return Object.hasOwn(REFUSAL_REASONS, status)
}

/** Whether tokens were missing that a top-up or a recall may bring, also where others are withheld in recovery. */
export function isShortage(reason: RefusalReason): boolean {
  const { check } = REFUSAL_REASONS[reason]
  return check === 'TOKENS' || check === 'ALLOCATION' || check === 'LIMIT'
}
