// A device as small as it can be: it keeps its counters and chains honestly and seals segments, and can be copied to play
// a clone or a restored backup. It knows nothing of disks, time or networks.
import { type KeyObject, generateKeyPairSync, randomBytes, randomUUID } from 'node:crypto'
import { type Counters, NO_COUNTERS, type TopUpRequest, available } from '../../../src/core/accounts/grant.ts'
import { attachAnswer } from '../../../src/protocol/edge/attach.ts'
import {
  type EntryBodyWire,
  type SegmentWire,
  type SyncAnswer,
  segment as segmentSchema,
  syncAnswer,
} from '../../../src/protocol/edge/sync.ts'
import {
  CHAIN_START,
  type PublicJwk,
  type Signer,
  entryHash,
  openDocument,
  generateKey,
  sha256,
  signDocument,
} from '../../../src/protocol/signing.ts'
import { newSigner } from '../../support/new-signer.ts'
import type { MergeResult } from '../../../src/cloud/sync/merge-context.ts'
import { INSTANCE, START, type Twin } from './twin.ts'

export interface Sealed {
  readonly document: string
  readonly seq: number
  readonly hash: string
  readonly final: boolean
}

export interface Charge {
  readonly lineItemId: string
  readonly accounts: readonly string[]
  readonly amount: bigint
}

interface State {
  epoch: number
  counters: Map<string, Counters>
  unlimited: Set<string>
  exhausted: Set<string>
  term: number
  /** The last entry that was recorded before the newest grant came. */
  grantedAfter: number
  /** With the counters as they were after each. */
  entries: { n: number; body: string; counters: Map<string, Counters> }[]
  lastEntry: number
  sealedEntry: number
  entryHead: string
  seq: number
  hash: string
  changed: Set<string>
  unacknowledged: Sealed | null
  fenced: boolean
  closed: boolean
  /** Micro-tokens billed by entries that were ever recorded in this epoch, by account. */
  net: Map<string, bigint>
}

const fresh = (epoch: number): State => ({
  epoch,
  counters: new Map(),
  unlimited: new Set(),
  exhausted: new Set(),
  term: 0,
  grantedAfter: 0,
  entries: [],
  lastEntry: 0,
  sealedEntry: 0,
  entryHead: CHAIN_START,
  seq: 0,
  hash: CHAIN_START,
  changed: new Set(),
  unacknowledged: null,
  fenced: false,
  closed: false,
  net: new Map(),
})

export interface DeviceKeys {
  readonly signer: Signer
  readonly jwk: PublicJwk
}

export async function newDeviceKeys(algorithm: 'EdDSA' | 'ES256' = 'ES256'): Promise<DeviceKeys> {
  return newSigner(algorithm === 'EdDSA' ? generateKeyPairSync('ed25519').privateKey : generateKey())
}

/** What a device sees of the twin, by whatever way. */
export interface TwinSide {
  readonly keys: { readonly trusted: readonly [{ readonly publicKey: KeyObject }, ...unknown[]] }
  attach(deviceId: string, nonce: string, above?: number, acknowledged?: number, backlog?: number): Promise<string>
  sync(deviceId: string, document: string): Promise<MergeResult>
}

export class TestDevice {
  /** Engine that decides the next entries. */
  engine = 1
  readonly id: string
  readonly keys: DeviceKeys
  readonly twin: TwinSide
  state: State
  /** What it knows of the time. */
  clock: SegmentWire['clock'] = { now: START, earliest: START, latest: null }
  /** Which its entries are about. */
  instanceId = INSTANCE

  constructor(id: string, keys: DeviceKeys, twin: TwinSide) {
    this.id = id
    this.keys = keys
    this.twin = twin
    this.state = fresh(0)
  }

  /** Enrolled and attached. */
  static async join(twin: Twin, instanceIds: string[] = [INSTANCE]): Promise<TestDevice> {
    const keys = await newDeviceKeys()
    const { deviceId } = await twin.enroll(await twin.enrollmentToken(instanceIds), keys.jwk)
    const device = new TestDevice(deviceId, keys, twin)
    await device.attach()
    return device
  }

  /** The same identity and the same state, on another machine or from a backup. */
  copy(): TestDevice {
    const copy = new TestDevice(this.id, this.keys, this.twin)
    copy.state = structuredClone(this.state)
    copy.instanceId = this.instanceId
    return copy
  }

  async attach(nonce: string = randomUUID()): Promise<void> {
    const { epoch, lastEntry, sealedEntry } = this.state
    const document = await this.twin.attach(this.id, nonce, epoch, 0, lastEntry - sealedEntry)
    const text = await this.#open('attach-answer', document)
    const answer = attachAnswer.parse(JSON.parse(text))
    if (answer.nonce !== nonce) throw new Error('the answer is for another attempt')
    if (answer.epoch <= this.state.epoch) throw new Error('the epoch is not a higher one')
    this.state = fresh(answer.epoch)
  }

  /** The final segment is sealed: nothing may be recorded until the next epoch, because it could never be reported. */
  get frozen(): boolean {
    return this.state.closed || this.state.unacknowledged?.final === true
  }

  counters(account: string): Counters {
    return this.state.counters.get(account) ?? NO_COUNTERS
  }

  available(account: string): bigint {
    return this.state.unlimited.has(account) ? 2n ** 60n : available(this.counters(account))
  }

  /** Charges all accounts, or records a refusal when one of them cannot give it. Returns whether it charged. */
  charge({ lineItemId, accounts, amount }: Charge): boolean {
    const granted = !this.state.fenced && accounts.every((account) => this.available(account) >= amount)
    if (granted && amount > 0n) {
      for (const account of accounts) this.#count(account, { used: amount })
    }
    this.record({
      kind: 'access',
      items: [
        {
          item: 'PhotoPrint',
          version: '1.0',
          count: '1',
          outcome: granted ? 'GRANTED' : 'GRANT_EXHAUSTED',
          total: granted ? String(amount) : '0',
          parts: granted ? [{ lineItemId, rate: '1', actionId: null, charged: String(amount) }] : [],
        },
      ],
      postings: granted && amount > 0n ? accounts.map((account) => ({ account, amount: String(amount) })) : [],
    })
    return granted
  }

  /** Charges what the grant does not hold, as an essential item lets a device that cannot ask. */
  chargeInOverspend({ lineItemId, accounts, amount }: Charge): void {
    const postings = accounts.map((account) => {
      const left = this.available(account)
      this.#count(account, { used: amount })
      const above = left > 0n ? amount - left : amount
      return { account, amount: String(amount), ...(above > 0n ? { aboveGrant: String(above) } : {}) }
    })
    const parts = [{ lineItemId, rate: '1', actionId: null, charged: String(amount) }]
    const item = { item: 'PhotoPrint', version: '1.0', count: '1', outcome: 'GRANTED', total: String(amount), parts }
    this.record({ kind: 'access', items: [item], postings })
  }

  refund({ lineItemId, accounts, amount }: Charge): void {
    for (const account of accounts) this.#count(account, { refunded: amount })
    this.record({
      kind: 'refund',
      items: [
        {
          item: 'PhotoPrint',
          version: '1.0',
          count: '1',
          outcome: 'REFUNDED',
          total: String(amount),
          parts: [{ lineItemId, rate: '1', actionId: null, charged: String(amount) }],
        },
      ],
      postings: accounts.map((account) => ({ account, amount: String(amount) })),
    })
  }

  record(part: Pick<EntryBodyWire, 'kind' | 'items' | 'postings' | 'session'>): void {
    const n = ++this.state.lastEntry
    const body: EntryBodyWire = {
      n,
      at: START,
      earliest: START,
      latest: null,
      instanceId: this.instanceId,
      policyRevision: 1,
      engine: this.engine,
      correlationId: randomUUID(),
      requester: { type: 'user', value: 'LisaBarry' },
      ...part,
    }
    this.state.entries.push({ n, body: JSON.stringify(body), counters: new Map(this.state.counters) })
    for (const { account, amount } of part.postings) {
      const net = part.kind === 'access' ? BigInt(amount) : -BigInt(amount)
      this.state.net.set(account, (this.state.net.get(account) ?? 0n) + net)
    }
  }

  /** Gives up what it has of the account beyond `keep`. */
  giveBack(account: string, keep = 0n): void {
    const left = available(this.counters(account)) - keep
    if (left > 0n) this.#count(account, { returned: left })
  }

  /** The segment that is on its way, or the next one. */
  async seal(topUpRequests: readonly Asked[] = [], final = false, entriesMax = Infinity): Promise<Sealed> {
    if (this.state.unacknowledged !== null) return this.state.unacknowledged
    const payload = this.payload(topUpRequests, final, entriesMax)
    const sealed = await this.sealAs(payload)
    this.state.unacknowledged = sealed
    this.state.seq = sealed.seq
    this.state.hash = sealed.hash
    this.state.entryHead = payload.entries.head
    this.state.sealedEntry += payload.entries.bodies.length
    if (this.state.sealedEntry === this.state.lastEntry) this.state.changed.clear()
    return sealed
  }

  /** What the next segment would say; the final one says everything. */
  payload(topUpRequests: readonly Asked[] = [], final = false, entriesMax = Infinity): SegmentWire {
    const { state } = this
    const unsealed = state.entries.filter(({ n }) => n > state.sealedEntry)
    const entries = final ? unsealed : unsealed.slice(0, entriesMax)
    const partly = entries.length < unsealed.length ? entries.at(-1)?.counters : undefined
    return {
      deviceId: this.id,
      epoch: state.epoch,
      seq: state.seq + 1,
      previousHash: state.hash,
      salt: randomBytes(16).toString('hex'),
      bootId: 'boot',
      clock: this.clock,
      counters: [...state.changed].map((account) => {
        const { used, refunded, returned } =
          partly === undefined ? this.counters(account) : (partly.get(account) ?? NO_COUNTERS)
        return { account, used: String(used), refunded: String(refunded), returned: String(returned) }
      }),
      entries: {
        first: state.sealedEntry + 1,
        previousHash: state.entryHead,
        head: entries.reduce((head, { body }) => entryHash(head, body), state.entryHead),
        bodies: entries.map(({ body }) => body),
      },
      undeliveredRange: null,
      backlog: unsealed.length - entries.length,
      grantTerm: state.sealedEntry + entries.length >= state.grantedAfter ? state.term : 0,
      topUpRequests: topUpRequests.map(({ account, wanted }) => ({ account, wanted: String(wanted) })),
      needs: topUpRequests
        .filter(({ atLeast }) => atLeast > 0n)
        .map(({ account, atLeast }) => [{ account, amount: String(atLeast) }]),
      policies: [{ instanceId: this.instanceId, revision: 1 }],
      final,
    }
  }

  /**
   * Entries `first` to `last` of this epoch, as another one delivers them.
   *
   * @param isWhole nothing of it was lost: the last of them say so
   */
  undeliveredRange(
    first = 1,
    last = this.state.lastEntry,
    isWhole = false,
  ): NonNullable<SegmentWire['undeliveredRange']> {
    const chain = (until: number): string =>
      this.state.entries.filter(({ n }) => n < until).reduce((head, { body }) => entryHash(head, body), CHAIN_START)
    return {
      epoch: this.state.epoch,
      entries: {
        first,
        previousHash: chain(first),
        head: chain(last + 1),
        bodies: this.state.entries.filter(({ n }) => n >= first && n <= last).map(({ body }) => body),
      },
      final: isWhole && last === this.state.lastEntry,
    }
  }

  /** Any payload at all, signed as a segment. */
  async sign(payload: unknown): Promise<string> {
    return signDocument('segment', JSON.stringify(payload), this.keys.signer)
  }

  async sealAs(payload: SegmentWire, signer: Signer = this.keys.signer): Promise<Sealed> {
    const text = JSON.stringify(payload)
    return {
      document: await signDocument('segment', text, signer),
      seq: payload.seq,
      hash: sha256(text),
      final: payload.final,
    }
  }

  /** Seals, sends and takes the answer. */
  async sync(topUpRequests: readonly Asked[] = [], final = false): Promise<SyncAnswer> {
    const sealed = await this.seal(topUpRequests, final)
    const taken = await this.twin.sync(this.id, sealed.document)
    if (!taken.accepted) throw new Error(taken.problem)
    return this.accept(taken.answer)
  }

  async accept(document: string): Promise<SyncAnswer> {
    const answer = syncAnswer.parse(JSON.parse(await this.#open('sync-answer', document)))
    const { state } = this
    if (answer.deviceId !== this.id || answer.epoch !== state.epoch) return answer
    const sent = state.unacknowledged
    if (answer.outcome === 'MERGED') {
      if (answer.seq === sent?.seq && answer.hash === sent.hash) state.unacknowledged = null
      const { grant } = answer
      if (grant !== null && grant.term > state.term) {
        state.term = grant.term
        state.grantedAfter = state.lastEntry
        for (const { account, granted, exhausted, unlimited } of grant.accounts) {
          state.counters.set(account, { ...this.counters(account), granted })
          if (unlimited) state.unlimited.add(account)
          else state.unlimited.delete(account)
          if (exhausted) state.exhausted.add(account)
          else state.exhausted.delete(account)
        }
      }
    }
    if (answer.outcome === 'KNOWN' && sent !== null && answer.seq >= sent.seq) {
      state.unacknowledged = null
      // Another device has continued from here: this one was restored, or is a copy.
      state.fenced ||= answer.seq > state.seq
    }
    if (answer.outcome === 'FENCED') {
      state.fenced = true
      state.closed ||= answer.closed
      if (answer.forked || (answer.seq === sent?.seq && answer.hash === sent.hash)) state.unacknowledged = null
    }
    return answer
  }

  /** After a fence: the final segment, and the next epoch. */
  async beginAgain(): Promise<void> {
    while (!this.state.closed) await this.sync([], this.state.unacknowledged === null)
    await this.attach()
  }

  #count(account: string, { used = 0n, refunded = 0n, returned = 0n }: Partial<Counters>): void {
    const before = this.counters(account)
    this.state.counters.set(account, {
      granted: before.granted,
      used: before.used + used,
      refunded: before.refunded + refunded,
      returned: before.returned + returned,
    })
    this.state.changed.add(account)
  }

  async #open(kind: 'attach-answer' | 'sync-answer', document: string): Promise<string> {
    const text = await openDocument(kind, document, this.twin.keys.trusted[0].publicKey)
    if (text === undefined) throw new Error(`the ${kind} is not signed by the twin`)
    return text
  }
}

/** What it asks for of one account: to hold in advance, and for a request that waits. */
export interface Asked extends TopUpRequest {
  readonly atLeast: bigint
}

export const topUpRequest = (account: string, wanted: bigint, atLeast = 0n): Asked => ({ account, wanted, atLeast })

/** So that a change of the wire form is noticed here, not in a rejection. */
export function assertSegment(payload: SegmentWire): void {
  segmentSchema.parse(payload)
}
