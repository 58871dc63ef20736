// A small cloud with the edge API and the sessions of the service API over an in-memory exchange, with real signatures. Its
// accounting shares no code with the real cloud, so that it can audit the agent: it bills the sum of all entries, each once.
import { createPublicKey } from 'node:crypto'
import { compactVerify, jwtVerify, SignJWT, decodeJwt } from 'jose'
import type { z } from 'zod'
import type { HttpAnswer, HttpExchange, HttpRequest } from '../../../src/agent/platform/http/exchange.ts'
import { ENGINE } from '../../../src/core/engine.ts'
import { MICRO_MAX } from '../../../src/core/pricing/amount.ts'
import { sizeGrants } from '../../../src/core/accounts/fair-share.ts'
import { type attachAnswer, attachRequest } from '../../../src/protocol/edge/attach.ts'
import { enrollmentRequest } from '../../../src/protocol/edge/enrollment.ts'
import { requireEnginesFit } from '../../../src/protocol/edge/engines.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import type { PolicyDocumentWire } from '../../../src/protocol/edge/policy-document.ts'
import {
  entryBody,
  type Segment,
  segment as segmentSchema,
  syncAnswer,
  type SyncAnswerWire,
  syncRequest,
} from '../../../src/protocol/edge/sync.ts'
import {
  CHAIN_START,
  type DocumentKind,
  entryHash,
  openDocument,
  type PublicJwk,
  sha256,
  signDocument,
  thumbprint,
} from '../../../src/protocol/signing.ts'
import type { NewSigner } from '../../support/new-signer.ts'

export const EDGE = 'https://cloud.test/tg/edge/api/v1'
export const SERVICE = 'https://cloud.test/tg/api'
export const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
export const OTHER_INSTANCE = '7c2f0d4e-5a8e-4a43-9f3f-0b6f5c0a9d21'
export const DEVICE = '0b0e7a52-8d3c-4c3e-9a25-0d2f9a1f7c01'

const DAY_MS = 86_400_000

interface Holding {
  granted: bigint
  used: bigint
  refunded: bigint
  returned: bigint
}

interface Epoch {
  readonly number: number
  status: 'ACTIVE' | 'FENCED' | 'CLOSED'
  forked: boolean
  term: number
  lastEntry: number
  entryHead: string
  /** By seq - 1. */
  readonly merged: { readonly hash: string; readonly answer: string }[]
  readonly holdings: Map<string, Holding>
}

type EntryBody = z.output<typeof entryBody>

interface Session {
  readonly id: string
  readonly instanceId: string
  readonly opening: string
  state: 'IDLE' | 'LOCKED' | 'TERMINATED' | 'FAILED' | 'DISCONNECTED'
}

function restoredFrom(epoch: Epoch | undefined, acknowledged: number): z.input<typeof attachAnswer>['restored'] {
  if (epoch === undefined) return { lastEntry: 0, entryHead: CHAIN_START }
  const { merged, lastEntry, entryHead } = epoch
  return merged.length < acknowledged ? { lastEntry, entryHead } : null
}

export class FakeCloud {
  readonly #now: () => number
  key: NewSigner
  /** Named in policies besides the signing key. */
  nextKeys: readonly PublicJwk[] = []
  devicePublicKey: PublicJwk | null = null
  enrolledBy: string | null = null
  readonly epochs = new Map<number, Epoch>()
  readonly #attachAnswers = new Map<string, string>()
  /** Undelivered entries that the device reported with each attach. */
  readonly backlogs: number[] = []
  readonly caps = new Map<string, bigint>()
  /** Every accepted entry once, by its epoch and hash. */
  readonly billed = new Map<string, EntryBody>()
  readonly policies = new Map<string, { revision: number; document: string }>()
  engine = ENGINE
  readonly sessions: Session[] = []
  /** Sent with the next merged segment. */
  directives: ('release' | 'sync')[] = []
  /** Sent with the next merged segment: the device must return tokens above these balances. */
  releases: { account: string; keep: string }[] = []
  nextSyncMs = 60_000
  grantLifetimeMs = DAY_MS
  pushUrl: string | null = null
  revoked = false
  /** Rejects the next segment that continues the chain. */
  refuses = false
  /** Whether a forked epoch is closed after its final segment. */
  closes = true
  /** Broken promises of the agent. */
  readonly alarms: string[] = []
  /** Segments of the sync requests as received. */
  readonly received: { readonly seq: number; readonly document: string }[] = []
  /** Proofs of grants that came with each segment. */
  readonly proofs: { readonly seq: number; readonly proofs: readonly string[] }[] = []
  readonly calls: string[] = []
  #sessionsOpened = 0

  constructor(now: () => number, key: NewSigner) {
    this.#now = now
    this.key = key
  }

  get current(): Epoch {
    const current = this.epochs.get(this.epochs.size)
    if (current === undefined) throw new Error('the device never attached')
    return current
  }

  async enrollmentToken(overrides: Record<string, unknown> = {}): Promise<string> {
    const claims = { jti: '3f0d9f06-6f0b-4c38-8e2d-0f3b1f2b9a10', edge: EDGE, instances: [INSTANCE] }
    return new SignJWT({ ...claims, pins: [this.key.signer.keyId], ...overrides })
      .setProtectedHeader({ alg: 'ES256', typ: 'tallygate-enrollment+jwt', kid: this.key.signer.keyId })
      .setIssuedAt(Math.floor(this.#now() / 1000))
      .setExpirationTime(Math.floor(this.#now() / 1000) + 86_400)
      .sign(this.key.signer.privateKey)
  }

  /** Signs and publishes the next revision. */
  async publish(document: Omit<PolicyDocumentWire, 'trustedKeys'> & { trustedKeys?: PublicJwk[] }): Promise<void> {
    const trustedKeys = document.trustedKeys ?? [this.key.jwk, ...this.nextKeys]
    const text = JSON.stringify({ ...document, trustedKeys })
    this.policies.set(document.instanceId, {
      revision: document.revision,
      document: await signDocument('policy', text, this.key.signer),
    })
  }

  /** As by an administrator or another attach: the epoch gets no more grants. */
  fence(): void {
    if (this.current.status === 'ACTIVE') this.current.status = 'FENCED'
  }

  /** Billed use of an account minus refunds. */
  billedOn(account: string): bigint {
    let sum = 0n
    for (const body of this.billed.values()) {
      for (const posting of body.postings) {
        if (posting.account === account) sum += body.kind === 'access' ? posting.amount : -posting.amount
      }
    }
    return sum
  }

  /** Tokens reserved for the device in all epochs. */
  outOn(account: string): bigint {
    let sum = 0n
    for (const { holdings } of this.epochs.values()) {
      const held = holdings.get(account)
      if (held !== undefined) sum += held.granted - held.returned
    }
    return sum
  }

  readonly exchange: HttpExchange = async (request) => {
    const path = new URL(request.url).pathname
    this.calls.push(`${request.method} ${path}`)
    const answer = await this.#route(request, path)
    return { ...answer, headers: { date: new Date(this.#now()).toUTCString(), ...answer.headers } }
  }

  async #route(request: HttpRequest, path: string): Promise<HttpAnswer> {
    const edge = path.split('/tg/edge/api/v1/')[1]
    const service = path.split('/tg/api/v1.1/')[1]
    if (edge === 'enrollments') return this.#enroll(request)
    const denied = await this.#authenticate(request)
    if (denied !== undefined) return denied
    if (edge === `devices/${DEVICE}/attach`) return this.#attach(request)
    if (edge === `devices/${DEVICE}/sync`) return this.#sync(request)
    const policy = /^instances\/([^/]+)\/policy$/.exec(edge ?? '')
    if (policy !== null) return this.#policy(request, policy[1] ?? '')
    if (service?.startsWith('sessions') === true) return this.#session(request, service.split('/'))
    return refusal(404, 'NOT_FOUND', 'There is no such route.')
  }

  async #authenticate({ headers }: HttpRequest): Promise<HttpAnswer | undefined> {
    const token = headers['authorization']?.replace('Bearer ', '') ?? ''
    if (this.devicePublicKey === null) return refusal(401, 'TOKEN_INVALID', 'unknown key')
    const key = createPublicKey({ key: this.devicePublicKey, format: 'jwk' })
    try {
      await jwtVerify(token, key, { currentDate: new Date(this.#now()), clockTolerance: 60, issuer: DEVICE })
    } catch (error) {
      const { code } = error as { code?: string }
      const { exp = 0 } = decodeJwt(token)
      const late = code === 'ERR_JWT_EXPIRED' || code === 'ERR_JWT_CLAIM_VALIDATION_FAILED'
      return refusal(401, late ? 'TOKEN_NOT_IN_TIME' : 'TOKEN_INVALID', `exp ${exp}`)
    }
    return this.revoked ? refusal(403, 'DEVICE_REVOKED', 'The key was revoked.') : undefined
  }

  async #enroll({ headers, body }: HttpRequest): Promise<HttpAnswer> {
    const token = headers['authorization']?.replace('Bearer ', '') ?? ''
    const { publicKey } = enrollmentRequest.parse(JSON.parse(body ?? ''))
    const used = await thumbprint(publicKey)
    if (this.enrolledBy !== null && this.enrolledBy !== used) {
      return refusal(403, 'ENROLLMENT_REFUSED', 'This enrollment token was used by another device.')
    }
    if (decodeJwt(token).jti === undefined) return refusal(401, 'TOKEN_INVALID', 'no token of this cloud')
    this.enrolledBy = used
    this.devicePublicKey = publicKey
    return json(200, {
      deviceId: DEVICE,
      instanceIds: decodeJwt<{ instances: string[] }>(token).instances,
      trustedKeys: [this.key.jwk],
      addresses: { edge: EDGE, service: SERVICE, push: this.pushUrl },
    })
  }

  async #attach({ body }: HttpRequest): Promise<HttpAnswer> {
    const { nonce, above, acknowledged, backlog } = attachRequest.parse(JSON.parse(body ?? ''))
    this.backlogs.push(backlog)
    let answer = this.#attachAnswers.get(nonce)
    if (answer === undefined) {
      const before = this.epochs.get(this.epochs.size)
      if (before?.status === 'ACTIVE') before.status = 'FENCED'
      const number = this.epochs.size + 1
      this.epochs.set(number, {
        number,
        status: 'ACTIVE',
        forked: false,
        term: 0,
        lastEntry: 0,
        entryHead: CHAIN_START,
        merged: [],
        holdings: new Map(),
      })
      answer = await this.#sign('attach-answer', {
        ...{ deviceId: DEVICE, nonce, epoch: number },
        restored: above === 0 ? null : restoredFrom(this.epochs.get(above), acknowledged),
      })
      this.#attachAnswers.set(nonce, answer)
    }
    return json(200, { answer, time: await this.#time(nonce, answer) })
  }

  async #sync({ body }: HttpRequest): Promise<HttpAnswer> {
    const { segment: document, nonce, proofs = [] } = syncRequest.parse(JSON.parse(body ?? ''))
    if (this.devicePublicKey === null) throw new Error('unreachable: the token was verified')
    const key = createPublicKey({ key: this.devicePublicKey, format: 'jwk' })
    const text = await openDocument('segment', document, key)
    if (text === undefined) return refusal(422, 'SEGMENT_REJECTED', 'not signed by its device')
    const segment = segmentSchema.parse(JSON.parse(text))
    this.received.push({ seq: segment.seq, document })
    this.proofs.push({ seq: segment.seq, proofs })
    const answer = await this.#accept(segment, sha256(text))
    if (typeof answer !== 'string') return answer
    return json(200, { answer, time: await this.#time(nonce, answer) })
  }

  async #accept(segment: Segment, hash: string): Promise<string | HttpAnswer> {
    const epoch = this.epochs.get(segment.epoch)
    if (epoch === undefined) return refusal(422, 'SEGMENT_REJECTED', 'never given out')
    const { merged } = epoch
    const about = { deviceId: DEVICE, epoch: epoch.number }
    if (segment.seq <= merged.length) {
      const known = merged[segment.seq - 1]
      if (known?.hash !== hash) return this.#fork(epoch, segment)
      if (segment.seq === merged.length) return known.answer
      return this.#answer({ outcome: 'KNOWN', ...about, seq: merged.length, hash: merged.at(-1)?.hash ?? CHAIN_START })
    }
    const isFar = segment.seq > merged.length + 1
    if (epoch.status === 'CLOSED' || (isFar && epoch.forked)) return this.#fork(epoch, segment)
    if (isFar) {
      return this.#answer({ outcome: 'BEHIND', ...about, seq: merged.length })
    }
    if (segment.previousHash !== (merged.at(-1)?.hash ?? CHAIN_START)) return this.#fork(epoch, segment)
    return this.#merge(epoch, segment, hash)
  }

  async #fork(epoch: Epoch, segment: Segment): Promise<string> {
    this.alarms.push(`fork of epoch ${epoch.number} at segment ${segment.seq}`)
    epoch.status = epoch.status === 'CLOSED' ? 'CLOSED' : 'FENCED'
    epoch.forked = true
    this.#bill(epoch, segment)
    return this.#answer({
      outcome: 'FENCED',
      deviceId: DEVICE,
      epoch: epoch.number,
      seq: epoch.merged.length,
      hash: epoch.merged.at(-1)?.hash ?? CHAIN_START,
      forked: true,
      closed: segment.final && this.closes,
      receipt: null,
    })
  }

  async #merge(epoch: Epoch, segment: Segment, hash: string): Promise<string | HttpAnswer> {
    const active = epoch.status === 'ACTIVE'
    if (this.refuses) {
      this.refuses = false
      epoch.status = 'FENCED'
      const about = { deviceId: DEVICE, epoch: epoch.number }
      return this.#answer({ outcome: 'REJECTED', ...about, hash, problem: 'ENTRY_DOES_NOT_ADD_UP' })
    }
    if (segment.entries.previousHash !== epoch.entryHead || segment.entries.first !== epoch.lastEntry + 1) {
      this.alarms.push(`the entries of segment ${segment.seq} do not follow the previous ones`)
      return refusal(422, 'SEGMENT_REJECTED', 'entries do not fit')
    }
    const posted = new Map<string, bigint>()
    for (const body of this.#bill(epoch, segment)) {
      for (const { account, amount } of body.postings) {
        posted.set(account, (posted.get(account) ?? 0n) + (body.kind === 'access' ? amount : -amount))
      }
    }
    for (const { account, used, refunded, returned } of segment.counters) {
      const held = this.#holding(epoch, account)
      if (used - refunded - (held.used - held.refunded) !== (posted.get(account) ?? 0n)) {
        this.alarms.push(`the counters of ${account} in segment ${segment.seq} differ from its entries`)
      }
      posted.delete(account)
      held.used = used
      held.refunded = refunded
      if (active) held.returned = returned
      if (held.used - held.refunded + held.returned > held.granted) this.alarms.push(`${account} was overspent`)
    }
    if (posted.size > 0) this.alarms.push(`segment ${segment.seq} charges accounts without counters`)
    epoch.lastEntry += segment.entries.bodies.length
    epoch.entryHead = segment.entries.head
    if (segment.final) {
      epoch.status = 'CLOSED'
      for (const held of epoch.holdings.values()) held.returned = held.granted - held.used + held.refunded
    }
    const about = { deviceId: DEVICE, epoch: epoch.number, seq: segment.seq, hash }
    const { first, bodies, head } = segment.entries
    const receipt = {
      epoch: epoch.number,
      seq: segment.seq,
      hash,
      entries: { from: first, to: first + bodies.length - 1, head },
      retainUntil: this.#now() + 7 * DAY_MS,
    }
    const answer = await this.#answer(
      active && !segment.final
        ? {
            outcome: 'MERGED',
            ...about,
            receipt,
            grant: this.#grant(epoch, segment),
            policies: [...this.policies].map(([instanceId, { revision }]) => ({ instanceId, revision })),
            directives: this.directives.splice(0),
            releases: this.releases.splice(0),
            nextSyncMs: this.nextSyncMs,
            time: this.#now(),
          }
        : { outcome: 'FENCED', ...about, forked: epoch.forked, closed: segment.final, receipt },
    )
    epoch.merged.push({ hash, answer })
    return answer
  }

  /** Returns the entries that were not billed before. */
  #bill({ number }: Epoch, segment: Segment): EntryBody[] {
    if (segment.undeliveredRange !== null)
      this.#billRange(segment.undeliveredRange.epoch, segment.undeliveredRange.entries)
    return this.#billRange(number, segment.entries)
  }

  #billRange(number: number, range: Segment['entries']): EntryBody[] {
    const fresh: EntryBody[] = []
    let head = range.previousHash
    for (const text of range.bodies) {
      head = entryHash(head, text)
      const key = `${number} ${head}`
      if (this.billed.has(key)) continue
      const body = entryBody.parse(JSON.parse(text))
      this.billed.set(key, body)
      fresh.push(body)
    }
    if (head !== range.head) this.alarms.push(`the chain of entries up to ${range.head} is broken`)
    return fresh
  }

  #grant(epoch: Epoch, segment: Segment): Extract<SyncAnswerWire, { outcome: 'MERGED' }>['grant'] {
    epoch.term += 1
    const asked = [...new Set([...segment.topUpRequests, ...segment.needs.flat()].map(({ account }) => account))]
    const freeOf = (account: string) => (this.caps.get(account) ?? 0n) - this.outOn(account)
    const supplies = new Map(
      asked.map((account) => {
        const { granted, returned, used, refunded } = this.#holding(epoch, account)
        const free = freeOf(account)
        return [account, { available: granted - returned - used + refunded, free, spare: free, share: MICRO_MAX }]
      }),
    )
    const sizes = sizeGrants(segment.needs, segment.topUpRequests, (account) => supplies.get(account))
    const accounts = asked.map((account) => {
      const held = this.#holding(epoch, account)
      held.granted += sizes.granted.get(account) ?? 0n
      const free = freeOf(account)
      const exhausted = free === 0n
      return { account, granted: String(held.granted), exhausted, available: String(free), unlimited: false }
    })
    const lifetimeMs = this.grantLifetimeMs
    return { term: epoch.term, lifetimeMs, expiresAt: this.#now() + lifetimeMs, accounts }
  }

  #holding({ holdings }: Epoch, account: string): Holding {
    const held = holdings.get(account) ?? { granted: 0n, used: 0n, refunded: 0n, returned: 0n }
    holdings.set(account, held)
    return held
  }

  #policy({ url, headers }: HttpRequest, instanceId: string): HttpAnswer {
    const { searchParams: query } = new URL(url)
    const agent = { version: Number(query.get('engine')), oldest: Number(query.get('oldestEngine')) }
    try {
      requireEnginesFit(agent, this.engine)
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      return refusal(error.httpStatus, error.code, error.message)
    }
    const policy = this.policies.get(instanceId)
    if (policy === undefined) return refusal(404, 'NOT_FOUND', 'There is no policy.')
    if (headers['if-none-match'] === `"${policy.revision}"`) return { status: 304, headers: {}, body: '' }
    return { status: 200, headers: { 'content-type': 'application/jose' }, body: policy.document }
  }

  #session({ method, headers, body }: HttpRequest, [, id, heartbeat]: string[]): HttpAnswer {
    const instanceId = headers['x-instance-id'] ?? ''
    if (method === 'POST') {
      if ((JSON.parse(body ?? '') as { instanceId: string }).instanceId !== instanceId)
        return json(400, { message: 'no' })
      const opening = headers['idempotency-key'] ?? ''
      const known = this.sessions.find((one) => one.opening === opening)
      if (known !== undefined) return json(200, { sessionId: known.id })
      this.#sessionsOpened += 1
      const session: Session = { id: sessionId(this.#sessionsOpened), instanceId, opening, state: 'IDLE' }
      this.sessions.push(session)
      return json(200, { sessionId: session.id })
    }
    const session = this.sessions.find((one) => one.id === id)
    if (session === undefined) return json(404, { message: 'There is no such session.' })
    if (method === 'GET' && heartbeat === 'heartbeat') {
      if (session.state === 'IDLE') return { status: 204, headers: {}, body: '' }
      return refusal(409, 'SESSION_NOT_OPERABLE', `Session is ${session.state}`)
    }
    session.state = 'TERMINATED'
    return { status: 204, headers: {}, body: '' }
  }

  async #answer(answer: SyncAnswerWire): Promise<string> {
    syncAnswer.parse(answer)
    return this.#sign('sync-answer', answer)
  }

  #time(nonce: string, answer: string): Promise<string> {
    return this.#sign('time', { nonce, time: this.#now(), answer: sha256(answer), push: this.pushUrl })
  }

  #sign(kind: DocumentKind, payload: unknown): Promise<string> {
    return signDocument(kind, JSON.stringify(payload), this.key.signer)
  }
}

/** Content of a signed document, whatever its signature. */
export async function contentOf(document: string, key: PublicJwk): Promise<unknown> {
  const { payload } = await compactVerify(document, createPublicKey({ key, format: 'jwk' }))
  return JSON.parse(new TextDecoder().decode(payload))
}

export function json(status: number, body: unknown): HttpAnswer {
  return { status, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }
}

export function refusal(status: number, code: string, message: string): HttpAnswer {
  return json(status, { code, message })
}

function sessionId(n: number): string {
  return `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`
}
