/** A simulated device: real keys and segments, with its counters in memory. It records ten entries for each sync. */
import { randomBytes, randomUUID } from 'node:crypto'
import { gzipSync } from 'node:zlib'
import { SignJWT } from 'jose'
import { correlationIds } from '../../src/agent/access/correlation-ids.ts'
import { lineAccount } from '../../src/core/accounts/account.ts'
import { attachAnswer } from '../../src/protocol/edge/attach.ts'
import { type EntryBodyWire, type SegmentWire, signedAnswer, syncAnswer } from '../../src/protocol/edge/sync.ts'
import {
  CHAIN_START,
  type PublicJwk,
  type Signer,
  entryHash,
  generateKey,
  publicJwkOf,
  sha256,
  signDocument,
  thumbprint,
  unverifiedText,
} from '../../src/protocol/signing.ts'

export const LINE_ITEM = 'ACT-1'
export const ENTRIES = 10
/** Price of an entry, micro-tokens: no whole number of tokens, so that an inexact sum shows. */
export const PRICE = 123_457n
export const PRICE_TEXT = '0.123457'

const TOKEN_LIFETIME_S = 6 * 3_600

export class FleetDevice {
  readonly jwk: PublicJwk
  readonly #signer: Signer
  readonly #newCorrelationId = correlationIds(randomUUID)
  /** Micro-tokens by account. */
  readonly balances = new Map<string, { granted: bigint; used: bigint }>()
  id = ''
  token = ''
  /** Entries that its grant did not cover. */
  refused = 0
  #epoch = 0
  #seq = 0
  #hash = CHAIN_START
  #head = CHAIN_START
  #entries = 0

  private constructor(jwk: PublicJwk, signer: Signer) {
    this.jwk = jwk
    this.#signer = signer
  }

  static async make(): Promise<FleetDevice> {
    const privateKey = generateKey()
    const jwk = publicJwkOf(privateKey)
    return new FleetDevice(jwk, { keyId: await thumbprint(jwk), privateKey })
  }

  /** @param id that the cloud gave at the enrollment */
  async enrolled(id: string, instanceIds: readonly string[]): Promise<void> {
    this.id = id
    for (const instanceId of instanceIds) {
      this.balances.set(lineAccount(instanceId, LINE_ITEM, 0), { granted: 0n, used: 0n })
    }
    const now = Math.floor(Date.now() / 1000)
    this.token = await new SignJWT({ cnf: { jwk: { kid: this.#signer.keyId, kty: 'CLIENT' } }, aud: [...instanceIds] })
      .setProtectedHeader({ alg: 'ES256', typ: 'JWT' })
      .setIssuer(id)
      .setIssuedAt(now)
      .setNotBefore(now - 60)
      .setExpirationTime(now + TOKEN_LIFETIME_S)
      .sign(this.#signer.privateKey)
  }

  attachBody(): Buffer {
    return Buffer.from(
      JSON.stringify({
        nonce: randomUUID(),
        bootId: 'bench',
        above: 0,
        acknowledged: 0,
        backlog: 0,
        software: 'bench',
      }),
    )
  }

  attached(reply: string): void {
    const { answer } = signedAnswer.parse(JSON.parse(reply))
    this.#epoch = attachAnswer.parse(JSON.parse(unverifiedText(answer) ?? '')).epoch
  }

  /**
   * Records entries about the line item of an instance, seals a segment with them, and requests a top-up. Returns the body
   * of a sync.
   */
  async seal(instanceId: string, entries: number, wanted: bigint): Promise<Buffer> {
    const account = lineAccount(instanceId, LINE_ITEM, 0)
    const first = this.#entries + 1
    const previousHash = this.#head
    const bodies: string[] = []
    for (let each = 0; each < entries; each += 1) {
      const body = this.#record(instanceId, account)
      this.#head = entryHash(this.#head, body)
      bodies.push(body)
    }
    const now = Date.now()
    const payload: SegmentWire = {
      deviceId: this.id,
      epoch: this.#epoch,
      seq: ++this.#seq,
      previousHash: this.#hash,
      salt: randomBytes(16).toString('hex'),
      bootId: 'bench',
      clock: { now, earliest: now - 1_000, latest: now + 1_000 },
      counters:
        entries === 0 ? [] : [{ account, used: `${this.#balance(account).used}`, refunded: '0', returned: '0' }],
      entries: { first, previousHash, head: this.#head, bodies },
      undeliveredRange: null,
      backlog: 0,
      grantTerm: 0,
      topUpRequests: [{ account, wanted: `${wanted}` }],
      needs: [],
      policies: [],
      final: false,
    }
    const text = JSON.stringify(payload)
    this.#hash = sha256(text)
    const segment = await signDocument('segment', text, this.#signer)
    return gzipSync(JSON.stringify({ segment, nonce: randomUUID() }))
  }

  synced(reply: string): void {
    const { answer } = signedAnswer.parse(JSON.parse(reply))
    const merged = syncAnswer.parse(JSON.parse(unverifiedText(answer) ?? ''))
    // A repeated segment gets the same answer.
    if (merged.outcome !== 'MERGED') throw new Error(`a segment is ${merged.outcome}`)
    for (const { account, granted } of merged.grant?.accounts ?? []) this.#balance(account).granted = granted
  }

  #balance(account: string): { granted: bigint; used: bigint } {
    const balance = this.balances.get(account)
    if (balance === undefined) throw new Error(`the device knows no account ${account}`)
    return balance
  }

  #record(instanceId: string, account: string): string {
    const n = ++this.#entries
    const at = Date.now()
    const balance = this.#balance(account)
    const isGranted = balance.granted - balance.used >= PRICE
    if (isGranted) balance.used += PRICE
    else this.refused += 1
    const total = isGranted ? `${PRICE}` : '0'
    const body: EntryBodyWire = {
      n,
      kind: 'access',
      at,
      earliest: at - 40,
      latest: at + 40,
      instanceId,
      policyRevision: 1,
      engine: 1,
      correlationId: this.#newCorrelationId(),
      requester: { type: 'user', value: `user-${n % 64}` },
      items: [
        {
          item: 'Print',
          version: '1.0',
          count: '1',
          outcome: isGranted ? 'GRANTED' : 'GRANT_EXHAUSTED',
          total,
          parts: isGranted ? [{ lineItemId: LINE_ITEM, rate: PRICE_TEXT, actionId: null, charged: total }] : [],
        },
      ],
      postings: isGranted ? [{ account, amount: total }] : [],
    }
    return JSON.stringify(body)
  }
}
