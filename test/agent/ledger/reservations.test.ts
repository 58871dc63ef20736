// Blocks of tokens that are reserved ahead: how long they are, when they are renewed, and that none reaches beyond what may be
// spent.
import { describe, expect, it } from 'vitest'
import { Reservations } from '../../../src/agent/ledger/reservations.ts'
import fc from '../../support/fast-check.ts'

const A = 'line/i/l/0'
const MAX = 1_000n
const PLENTY = 10n ** 12n

class Account {
  now = 0
  readonly accountReservations: Reservations
  used = 0n
  usedMax = PLENTY

  constructor(max = MAX) {
    this.accountReservations = new Reservations(max, () => this.now)
  }

  get spendable() {
    return { used: this.used, usedMax: this.usedMax }
  }

  charge(amount: bigint): void {
    this.used += amount
    this.accountReservations.saw(A, amount)
  }

  propose(): bigint {
    return this.accountReservations.propose(A, this.spendable)
  }

  commit(): bigint {
    const end = this.propose()
    this.accountReservations.committed()
    return end
  }

  get covers(): boolean {
    return this.accountReservations.covers(A, this.spendable)
  }

  get isLow(): boolean {
    return this.accountReservations.isLow(A, this.spendable)
  }

  get isOpen(): boolean {
    return this.accountReservations.open(() => this.spendable).includes(A)
  }
}

/** An account with a block of 100 tokens, of which none is spent. */
function withBlock(): Account {
  const account = new Account()
  account.charge(100n)
  expect(account.commit()).toBe(200n)
  return account
}

describe('a block', () => {
  it('is at first as long as the largest charge', () => {
    const account = new Account()
    account.charge(30n)
    account.charge(70n)
    account.charge(50n)
    expect(account.commit()).toBe(150n + 70n)
  })

  it('is as long as two seconds at the rate since the last one', () => {
    const account = withBlock()
    account.now = 1_000
    account.charge(90n)
    account.charge(90n)
    expect(account.commit()).toBe(account.used + 360n)
  })

  it('takes two charges in one moment for no rate', () => {
    const account = withBlock()
    account.now = 1
    account.charge(20n)
    // As if it were 100 ms.
    expect(account.commit()).toBe(account.used + 400n)
  })

  it('shrinks by halves', () => {
    const account = new Account()
    account.charge(10n)
    account.commit()
    account.now = 100
    account.charge(40n)
    expect(account.commit() - account.used).toBe(800n)
    const ends = [400n, 200n, 100n].map(() => {
      account.now += 1_000_000
      // All of it is used, so that the end is that of the new block.
      account.charge(10n)
      account.used += 800n
      return account.commit() - account.used
    })
    expect(ends).toEqual([400n, 200n, 100n])
  })

  it.each<[string, bigint, bigint]>([
    ['no longer than it may be', 10n, 1_000n],
    ['as long as one charge, however large', 5_000n, 5_000n],
  ])('is %s', (_name, amount, size) => {
    const account = new Account()
    account.charge(amount)
    account.commit()
    account.now = 100
    for (let n = 0; n < 100; n += 1) account.charge(amount)
    expect(account.commit() - account.used).toBe(size)
  })

  it('never exceeds the available balance', () => {
    const account = new Account()
    account.usedMax = 150n
    account.charge(100n)
    expect(account.commit()).toBe(150n)
  })

  it('does not fall where less was spent than at the last one', () => {
    const account = withBlock()
    account.now = 1_000
    account.used = 60n
    expect(account.commit()).toBe(200n)
  })

  it('is made for charges only', () => {
    expect(() => new Account().propose()).toThrow('invariant')
  })
})

describe('the amount that a block covers', () => {
  it('is use up to its end, once it is committed', () => {
    const account = new Account()
    expect(account.covers).toBe(true)
    account.charge(100n)
    expect(account.covers).toBe(false)
    account.propose()
    expect(account.covers).toBe(false)
    account.accountReservations.committed()
    account.used = 200n
    expect(account.covers).toBe(true)
    account.used = 201n
    expect(account.covers).toBe(false)
  })

  it('is zero for a block that could not be committed', () => {
    const account = new Account()
    account.charge(100n)
    account.propose()
    account.accountReservations.failed()
    account.accountReservations.committed()
    expect(account.covers).toBe(false)
  })

  it('is lowered to the available balance, also while the block is being committed', () => {
    const account = withBlock()
    account.usedMax = 120n
    account.accountReservations.lower(A, account.spendable)
    account.used = 120n
    expect(account.covers).toBe(true)
    account.used = 121n
    expect(account.covers).toBe(false)
    account.accountReservations.lower(A, { used: 121n, usedMax: 500n })
    expect(account.covers).toBe(false)

    const other = withBlock()
    other.now = 1_000
    other.charge(100n)
    other.propose()
    other.usedMax = 210n
    other.accountReservations.lower(A, other.spendable)
    other.accountReservations.committed()
    other.used = 201n
    expect(other.covers).toBe(false)
    other.accountReservations.lower('line/i/other/0', other.spendable)
  })

  it('can be lowered and closed without a reservation', () => {
    const account = new Account()
    account.accountReservations.lower(A, account.spendable)
    account.accountReservations.close(A)
    expect([account.covers, account.isOpen]).toEqual([true, false])
  })

  it('stays out of force if the block is closed while it is being committed, even after another block began', () => {
    const account = withBlock()
    account.charge(10n)
    account.propose()
    account.accountReservations.close(A)
    account.charge(10n)
    account.accountReservations.committed()
    expect([account.covers, account.isOpen]).toEqual([false, false])
  })

  it('ends where it is closed, and with all others', () => {
    for (const end of [
      (accountReservations: Reservations) => accountReservations.close(A),
      (accountReservations: Reservations) => accountReservations.clear(),
    ]) {
      const account = withBlock()
      account.charge(100n)
      account.propose()
      end(account.accountReservations)
      account.accountReservations.committed()
      expect([account.covers, account.isOpen]).toEqual([false, false])
    }
  })
})

describe('an account', () => {
  it('is low with less than half of its block left, unless the next one is on its way or could be no longer', () => {
    const account = new Account()
    expect(account.isLow).toBe(true)
    const running = withBlock()
    running.used = 150n
    expect(running.isLow).toBe(false)
    running.used = 151n
    expect(running.isLow).toBe(true)
    running.usedMax = 200n
    expect(running.isLow).toBe(false)
    running.usedMax = 201n
    expect(running.isLow).toBe(true)
    running.propose()
    expect(running.isLow).toBe(false)
    running.accountReservations.failed()
    expect(running.isLow).toBe(true)
  })

  it('has an open block as long as some of it is left, or is on its way', () => {
    const account = withBlock()
    expect(account.isOpen).toBe(true)
    account.used = 200n
    expect(account.isOpen).toBe(false)
    account.charge(1n)
    account.propose()
    expect(account.isOpen).toBe(true)
    account.accountReservations.close(A)
    expect(account.isOpen).toBe(false)
  })
})

it('no committed block exceeds the available balance or covers less than its use, after any charges', () => {
  const moves = fc.array(
    fc.tuple(fc.constantFrom('charge', 'commit', 'fail', 'lower'), fc.bigInt({ min: 1n, max: 600n }), fc.nat(3_000)),
    { maxLength: 40 },
  )
  fc.assert(
    fc.property(moves, (steps) => {
      const account = new Account()
      account.usedMax = 5_000n
      for (const [move, amount, ms] of steps) {
        account.now += ms
        if (move === 'charge' && account.used + amount <= account.usedMax) account.charge(amount)
        if (move === 'lower') {
          const rest = account.usedMax - account.used
          account.usedMax -= amount < rest ? amount : rest
          account.accountReservations.lower(A, account.spendable)
        }
        if (move === 'commit' || move === 'fail') {
          account.accountReservations.saw(A, 1n)
          expect(account.propose()).toBeGreaterThanOrEqual(account.used)
          if (move === 'fail') account.accountReservations.failed()
          else account.accountReservations.committed()
        }
        expect(account.accountReservations.covers(A, { used: account.usedMax + 1n, usedMax: account.usedMax })).toBe(
          false,
        )
      }
    }),
  )
})
