/** A device that has recorded entries offline, and delivers them over HTTP as an agent does. All segments are sealed first. */
import { randomBytes, randomUUID } from 'node:crypto'
import { Agent, request } from 'node:http'
import { gzipSync } from 'node:zlib'
import { SignJWT } from 'jose'
import { correlationIds } from '../../src/agent/access/correlation-ids.ts'
import { lineAccount } from '../../src/core/accounts/account.ts'
import { attachAnswer } from '../../src/protocol/edge/attach.ts'
import { enrollmentResponse } from '../../src/protocol/edge/enrollment.ts'
import {
  type EntryBodyWire,
  SEGMENT_ENTRIES_MAX,
  type SegmentWire,
  signedAnswer,
  syncAnswer,
} from '../../src/protocol/edge/sync.ts'
import {
  CHAIN_START,
  type Signer,
  entryHash,
  generateKey,
  publicJwkOf,
  sha256,
  signDocument,
  thumbprint,
  unverifiedText,
} from '../../src/protocol/signing.ts'

const MICRO = 1_000_000n

/** Longest time between two decisions, ms. */
const SPACING_MS = 2_000

export class DeliveringDevice implements Disposable {
  readonly #address: string
  readonly #instanceId: string
  readonly #id: string
  readonly #signer: Signer
  readonly #token: string
  readonly #connection = new Agent({ keepAlive: true, maxSockets: 1 })
  readonly #bodies: Buffer[] = []
  readonly #newCorrelationId = correlationIds(randomUUID)
  #epoch = 0
  #seq = 0
  #hash = CHAIN_START
  #head = CHAIN_START
  #entries = 0
  #time = Date.now() - 30 * 86_400_000

  private constructor(address: string, instanceId: string, id: string, signer: Signer, token: string) {
    this.#address = address
    this.#instanceId = instanceId
    this.#id = id
    this.#signer = signer
    this.#token = token
  }

  /** Enrolled, attached, and with `tokens` granted of the line item `ACT-1`. */
  static async join(address: string, instanceId: string, enrollmentToken: string, tokens: number) {
    const privateKey = generateKey()
    const jwk = publicJwkOf(privateKey)
    const signer: Signer = { keyId: await thumbprint(jwk), privateKey }
    const reply = await fetch(`${address}/edge/api/v1/enrollments`, {
      method: 'POST',
      headers: { authorization: `Bearer ${enrollmentToken}`, 'content-type': 'application/json' },
      body: JSON.stringify({ publicKey: jwk }),
    })
    const { deviceId } = enrollmentResponse.parse(await reply.json())
    const token = await new SignJWT({ cnf: { jwk: { kid: signer.keyId, kty: 'CLIENT' } }, aud: [instanceId] })
      .setProtectedHeader({ alg: 'ES256', typ: 'JWT' })
      .setIssuer(deviceId)
      .setIssuedAt()
      .setNotBefore(Math.floor(Date.now() / 1000) - 60)
      .setExpirationTime(Math.floor(Date.now() / 1000) + 3_600)
      .sign(privateKey)
    const device = new DeliveringDevice(address, instanceId, deviceId, signer, token)
    await device.#attach()
    await device.#seal([], tokens)
    await device.deliver()
    return device
  }

  /** Records entries and seals them. */
  async record(count: number): Promise<void> {
    for (let left = count; left > 0; left -= SEGMENT_ENTRIES_MAX) {
      const bodies = Array.from({ length: Math.min(left, SEGMENT_ENTRIES_MAX) }, () => this.#entry())
      await this.#seal(bodies, 0)
    }
  }

  /** @returns bytes of the bodies sent */
  async deliver(): Promise<number> {
    let bytes = 0
    for (const body of this.#bodies.splice(0)) {
      bytes += body.byteLength
      const { answer } = signedAnswer.parse(await this.#post('sync', body))
      const { outcome } = syncAnswer.parse(JSON.parse(unverifiedText(answer) ?? ''))
      if (outcome !== 'MERGED') throw new Error(`a segment is ${outcome}`)
    }
    return bytes
  }

  [Symbol.dispose](): void {
    this.#connection.destroy()
  }

  async #attach(): Promise<void> {
    const first = { nonce: randomUUID(), bootId: 'bench', above: 0, acknowledged: 0, backlog: 0, software: 'bench' }
    const body = JSON.stringify(first)
    const { answer } = signedAnswer.parse(await this.#post('attach', Buffer.from(body), false))
    this.#epoch = attachAnswer.parse(JSON.parse(unverifiedText(answer) ?? '')).epoch
  }

  #entry(): string {
    const n = ++this.#entries
    const at = (this.#time += Math.ceil(Math.random() * SPACING_MS))
    const line = 'ACT-1'
    const body: EntryBodyWire = {
      n,
      kind: 'access',
      at,
      earliest: at - 40,
      latest: at + 40,
      instanceId: this.#instanceId,
      policyRevision: 3,
      engine: 1,
      correlationId: this.#newCorrelationId(),
      requester: { type: 'user', value: `user-${n % 64}` },
      items: [
        {
          item: 'Print',
          version: '1.0',
          count: '1',
          outcome: 'GRANTED',
          total: String(MICRO),
          parts: [{ lineItemId: line, rate: '1', actionId: null, charged: String(MICRO) }],
        },
      ],
      postings: [{ account: lineAccount(this.#instanceId, line, 0), amount: String(MICRO) }],
    }
    return JSON.stringify(body)
  }

  async #seal(bodies: readonly string[], wanted: number): Promise<void> {
    const account = lineAccount(this.#instanceId, 'ACT-1', 0)
    const previousHead = this.#head
    for (const body of bodies) this.#head = entryHash(this.#head, body)
    const used = String(BigInt(this.#entries) * MICRO)
    const now = Date.now()
    const payload: SegmentWire = {
      deviceId: this.#id,
      epoch: this.#epoch,
      seq: ++this.#seq,
      previousHash: this.#hash,
      salt: randomBytes(16).toString('hex'),
      bootId: 'bench',
      clock: { now, earliest: now - 1_000, latest: now + 1_000 },
      counters: bodies.length === 0 ? [] : [{ account, used, refunded: '0', returned: '0' }],
      entries: {
        first: this.#entries - bodies.length + 1,
        previousHash: previousHead,
        head: this.#head,
        bodies: [...bodies],
      },
      undeliveredRange: null,
      backlog: 0,
      grantTerm: 0,
      topUpRequests: wanted === 0 ? [] : [{ account, wanted: String(BigInt(wanted) * MICRO) }],
      needs: [],
      policies: [],
      final: false,
    }
    const text = JSON.stringify(payload)
    this.#hash = sha256(text)
    const segment = await signDocument('segment', text, this.#signer)
    this.#bodies.push(gzipSync(JSON.stringify({ segment, nonce: randomUUID() })))
  }

  #post(operation: string, body: Buffer, isCompressed = true): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const sent = request(
        `${this.#address}/edge/api/v1/devices/${this.#id}/${operation}`,
        {
          method: 'POST',
          agent: this.#connection,
          headers: {
            authorization: `Bearer ${this.#token}`,
            'content-type': 'application/json',
            ...(isCompressed ? { 'content-encoding': 'gzip' } : {}),
            'content-length': body.byteLength,
          },
        },
        (response) => {
          let text = ''
          response.setEncoding('utf8')
          response.on('data', (piece: string) => (text += piece))
          response.on('end', () => {
            if (response.statusCode === 200) resolve(JSON.parse(text))
            else reject(new Error(`${operation}: ${response.statusCode} ${text}`))
          })
        },
      )
      sent.on('error', reject)
      sent.end(body)
    })
  }
}
