// A device of the tests that reaches the twin over HTTP, with tokens of its own.
import { ENGINE, type Engine } from '../../../src/core/engine.ts'
import { engineQuery } from '../../../src/protocol/edge/engines.ts'
import { createPublicKey, randomUUID } from 'node:crypto'
import { SignJWT } from 'jose'
import type { z } from 'zod'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { enrollmentResponse } from '../../../src/protocol/edge/enrollment.ts'
import { signedAnswer, signedTime } from '../../../src/protocol/edge/sync.ts'
import { algorithmOf, openDocument } from '../../../src/protocol/signing.ts'
import type { Reply, Twin } from '../harness.ts'
import { type DeviceKeys, TestDevice, type TwinSide, newDeviceKeys } from '../sync/test-device.ts'

export const EDGE = '/edge/api/v1'

export interface TokenChange {
  readonly issuer?: string
  readonly audience?: readonly string[]
  readonly kid?: string
  readonly kty?: string
  readonly from?: number
  readonly until?: number
  readonly signer?: DeviceKeys['signer']
}

export class EdgeClient {
  readonly twin: Twin
  readonly device: TestDevice
  readonly instanceId: string
  readonly keys: DeviceKeys

  private constructor(twin: Twin, device: TestDevice, instanceId: string, keys: DeviceKeys) {
    this.twin = twin
    this.device = device
    this.instanceId = instanceId
    this.keys = keys
  }

  /** Enrolls a device with keys of its own, and attaches it. */
  static async join(
    twin: Twin,
    instanceId: string,
    algorithm: 'EdDSA' | 'ES256' = 'ES256',
    token?: string,
  ): Promise<EdgeClient> {
    const keys = await newDeviceKeys(algorithm)
    const enrolled = await twin.call('POST', `${EDGE}/enrollments`, {
      token: token ?? (await twin.enrollmentToken(instanceId)),
      body: { publicKey: keys.jwk },
    })
    const { deviceId, trustedKeys } = enrollmentResponse.parse(enrolled.body)
    const [jwk] = trustedKeys
    const publicKey = createPublicKey({ key: jwk!, format: 'jwk' })
    const side: TwinSide = {
      keys: { trusted: [{ publicKey }] },
      attach: async (_id, nonce, above, _, backlog) => (await client.attach(nonce, above, backlog)).answer,
      sync: async (_id, document) => {
        const reply = await client.post('sync', { segment: document, nonce: randomUUID() })
        if (reply.status === 200)
          return { accepted: true, answer: signedAnswer.parse(reply.body).answer, unbilled: null }
        return { accepted: false, problem: reply.text }
      },
    }
    const device = new TestDevice(deviceId, keys, side)
    device.instanceId = instanceId
    const client: EdgeClient = new EdgeClient(twin, device, instanceId, keys)
    await device.attach()
    return client
  }

  get id(): string {
    return this.device.id
  }

  line(lineItemId = 'ACT-1'): string {
    return lineAccount(this.instanceId, lineItemId, 0)
  }

  async token(change: TokenChange = {}): Promise<string> {
    const now = this.twin.wall
    const signer = change.signer ?? this.keys.signer
    const cnf = { jwk: { kid: change.kid ?? this.keys.signer.keyId, kty: change.kty ?? 'CLIENT' } }
    return new SignJWT({ cnf, aud: [...(change.audience ?? [this.instanceId])] })
      .setProtectedHeader({ alg: algorithmOf(signer.privateKey), typ: 'JWT' })
      .setIssuer(change.issuer ?? this.id)
      .setNotBefore(Math.floor((change.from ?? now) / 1000))
      .setIssuedAt(Math.floor((change.from ?? now) / 1000))
      .setExpirationTime(Math.floor((change.until ?? now + 300_000) / 1000))
      .sign(signer.privateKey)
  }

  async post(what: 'attach' | 'sync', body: unknown, token?: string): Promise<Reply> {
    return this.twin.call('POST', `${EDGE}/devices/${this.id}/${what}`, { token: token ?? (await this.token()), body })
  }

  async attach(nonce: string, above = 0, backlog = 0): Promise<{ answer: string; time: number }> {
    const reply = await this.post('attach', {
      nonce,
      bootId: 'boot',
      above,
      acknowledged: 0,
      backlog,
      software: 'tests',
    })
    if (reply.status !== 200) throw new Error(reply.text)
    const { answer, time } = signedAnswer.parse(reply.body)
    const signed = await this.#signedWith(time)
    if (signed.nonce !== nonce) throw new Error('the time is for another attempt')
    return { answer, time: signed.time }
  }

  /** Syncs, and returns the document that is signed for this attempt. */
  async signedAtSync(): Promise<z.infer<typeof signedTime>> {
    const { document } = await this.device.seal()
    const reply = await this.post('sync', { segment: document, nonce: randomUUID() })
    const { answer, time } = signedAnswer.parse(reply.body)
    await this.device.accept(answer)
    return this.#signedWith(time)
  }

  async #signedWith(time: string): Promise<z.infer<typeof signedTime>> {
    const text = await openDocument('time', time, this.device.twin.keys.trusted[0].publicKey)
    return signedTime.parse(JSON.parse(text ?? ''))
  }

  async policy(
    headers: Record<string, string> = {},
    instanceId = this.instanceId,
    agent: Engine = ENGINE,
  ): Promise<Response> {
    return fetch(`${this.twin.cloud.address}${EDGE}/instances/${instanceId}/policy?${engineQuery(agent)}`, {
      headers: { authorization: `Bearer ${await this.token()}`, ...headers },
    })
  }
}
