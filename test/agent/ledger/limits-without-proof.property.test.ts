// The journal deletes proofs of limits that have no balance: a start reports nothing, and gives no more than the cloud granted.
import { expect, it } from 'vitest'
import { type AccountId, isLimitAccount, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { available } from '../../../src/core/accounts/grant.ts'
import type { AccountState } from '../../../src/agent/ledger/journal.ts'
import { deriveState, openSigned, trustInAnswers } from '../../../src/agent/ledger/signed-state.ts'
import type { SyncAnswerWire } from '../../../src/protocol/edge/sync.ts'
import { CHAIN_START, signDocument } from '../../../src/protocol/signing.ts'
import fc from '../../support/fast-check.ts'
import { accountState } from '../harness.ts'
import { DEVICE, INSTANCE } from '../sync/fake-cloud.ts'
import { type NewSigner, newSigner } from '../../support/new-signer.ts'
import { BEGIN } from '../sync/fake-time.ts'

const ACCOUNTS: readonly AccountId[] = [
  ...['ada', 'ben', 'cleo'].map((value) => limitAccount(INSTANCE, 'line-1', { type: 'user', value }, 0)),
  lineAccount(INSTANCE, 'line-1', 0),
]

const some = fc.subarray([...ACCOUNTS], { minLength: 1 })
const step = fc.oneof(
  fc.record({ kind: fc.constant('grant'), accounts: some, amount: fc.nat(5), exhausted: fc.boolean() }),
  fc.record({ kind: fc.constantFrom('charge', 'refund', 'return', 'prune'), accounts: some, amount: fc.nat(10) }),
)
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never

interface Answer {
  readonly term: number
  readonly document: string
}

/** The counters and the answers that a journal keeps. */
class Kept {
  readonly states = new Map<AccountId, AccountState>()
  readonly #key: NewSigner
  readonly #proofs = new Map<AccountId, number>()
  #answers: readonly Answer[] = []
  #term = 0

  constructor(key: NewSigner) {
    this.#key = key
  }

  async take({ kind, accounts, amount, ...more }: Step): Promise<void> {
    if (kind === 'grant') return this.#grant(accounts, BigInt(amount), 'exhausted' in more && more.exhausted)
    if (kind === 'prune') {
      this.#prune()
      return
    }
    for (const account of accounts) {
      const state = this.states.get(account)
      if (state === undefined) continue
      const { used, refunded, returned } = state
      const most = (left: bigint): bigint => (BigInt(amount) < left ? BigInt(amount) : left)
      const next = {
        charge: { used: used + most(available(state)) },
        refund: { refunded: refunded + most(used - refunded) },
        return: { returned: returned + available(state) },
      }[kind]
      this.states.set(account, { ...state, ...next })
    }
  }

  async #grant(accounts: readonly AccountId[], amount: bigint, exhausted: boolean): Promise<void> {
    this.#term += 1
    for (const account of accounts) {
      const state = this.states.get(account) ?? accountState({})
      this.states.set(account, { ...state, granted: state.granted + amount, exhausted })
      this.#proofs.set(account, this.#term)
    }
    const wire = accounts.map((account) => {
      const granted = String(this.states.get(account)?.granted)
      return { account, granted, exhausted, available: '0', unlimited: false }
    })
    const place = { epoch: 1, seq: this.#term, hash: CHAIN_START }
    const answer: SyncAnswerWire = {
      ...{ outcome: 'MERGED', deviceId: DEVICE, ...place },
      receipt: { ...place, entries: { from: 1, to: 0, head: CHAIN_START }, retainUntil: BEGIN },
      grant: { term: this.#term, lifetimeMs: 1_000, expiresAt: BEGIN, accounts: wire },
      ...{ policies: [], directives: [], releases: [], sessions: [], nextSyncMs: 1, time: BEGIN },
    }
    const document = await signDocument('sync-answer', JSON.stringify(answer), this.#key.signer)
    this.#answers = [...this.#answers, { term: this.#term, document }]
  }

  #prune(): void {
    const isNeeded = ([account]: readonly [AccountId, number]): boolean => {
      const state = this.states.get(account)
      return state !== undefined && (!isLimitAccount(account) || available(state) > 0n)
    }
    const needed = new Set([this.#term, ...[...this.#proofs].filter(isNeeded).map(([, term]) => term)])
    this.#answers = this.#answers.filter(({ term }) => needed.has(term))
  }

  /** As an agent starts. */
  async start(states: ReadonlyMap<AccountId, AccountState> = this.states) {
    const read = new Set([this.#term, ...this.#proofs.values()])
    const answers = this.#answers.filter(({ term }) => read.has(term)).map(({ document }) => document)
    const trust = await trustInAnswers({ trustedKeys: [JSON.stringify(this.#key.jwk)] })
    const signed = await openSigned(answers, trust, { deviceId: DEVICE, epoch: 1 })
    const grant = this.#term === 0 ? null : { term: this.#term, lifetimeMs: 1_000, expiresAt: BEGIN, agedMs: 0 }
    return deriveState({ epoch: 1, accounts: states, grant, policies: [] }, signed)
  }
}

const steps = fc.array(step, { minLength: 5, maxLength: 25 })

it('starts without a report, with the balances that were left', async () => {
  const key = await newSigner()
  await fc.assert(
    fc.asyncProperty(steps, async (all) => {
      const kept = new Kept(key)
      for (const each of all) await kept.take(each)
      const { accounts, edits } = await kept.start()
      expect(edits).toEqual([])
      for (const [account, state] of kept.states) {
        const left = available(accounts.get(account)!)
        // Refunds after the proof was deleted wait for a grant.
        const isUnproven = isLimitAccount(account) && state.refunded > 0n && left === 0n
        if (!isUnproven) expect(left, account).toBe(available(state))
      }
    }),
    { numRuns: 300 },
  )
})

it('gives no account more than that, whatever grant its owner writes', async () => {
  const key = await newSigner()
  await fc.assert(
    fc.asyncProperty(steps, fc.constantFrom(...ACCOUNTS), fc.nat(60), async (all, account, granted) => {
      const kept = new Kept(key)
      for (const each of all) await kept.take(each)
      const state = kept.states.get(account)
      if (state === undefined) return
      const edited = new Map(kept.states).set(account, { ...state, granted: BigInt(granted) })
      const { accounts } = await kept.start(edited)
      expect(available(accounts.get(account)!)).toBeLessThanOrEqual(available(state))
    }),
    { numRuns: 300 },
  )
})
