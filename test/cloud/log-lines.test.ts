// What anyone can make the cloud log.
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Writable } from 'node:stream'
import { type Logger, pino } from 'pino'
import { describe, expect, it, onTestFinished } from 'vitest'
import { CHAIN_START, entryHash } from '../../src/protocol/signing.ts'
import { EDGE, EdgeClient } from './devices/edge-client.ts'
import type { CloudSettings } from '../../src/cloud/settings.ts'
import { Authority } from '../support/certificates.ts'
import { DAY, START, openTwin, pick, text } from './harness.ts'
import { Listener } from './platform/mqtt/listener.ts'

function logger(): { readonly log: Logger; readonly about: (message: string) => readonly unknown[] } {
  const lines: unknown[] = []
  const sink = new Writable({
    write: (line: Buffer, _encoding, done) => {
      lines.push(JSON.parse(String(line)))
      done()
    },
  })
  return {
    log: pino({ level: 'info' }, sink),
    about: (message) => lines.filter((line) => pick(line, 'msg') === message),
  }
}

describe('the log', () => {
  it('warns at the start of an address that devices get and cannot use', async () => {
    const { log, about } = logger()
    await using _twin = await openTwin(
      (settings) => ({ ...settings, http: { ...settings.http, host: '0.0.0.0' } }),
      log,
    )
    const warning = 'enrollment tokens name the address 0.0.0.0, which devices cannot use: set http.public_url'
    expect(about(warning)).toEqual([expect.objectContaining({ level: 40, setting: 'http.public_url' })])
  })

  it('warns of a certificate that expires while the cloud runs', async () => {
    await using authority = await Authority.make()
    const expiresAt = START + 1.5 * DAY
    const { certificate, key } = await authority.certify(expiresAt)
    const folder = await mkdtemp(join(tmpdir(), 'tallygate-tls-'))
    onTestFinished(() => rm(folder, { recursive: true }))
    const tls = { certificateFile: join(folder, 'certificate.pem'), keyFile: join(folder, 'key.pem') }
    await writeFile(tls.certificateFile, certificate)
    await writeFile(tls.keyFile, key)
    const { log, about } = logger()
    const change = (settings: CloudSettings): CloudSettings => ({
      ...settings,
      tls,
      metrics: { ...settings.metrics, listen: '127.0.0.1:0' },
    })
    await using twin = await openTwin(change, log)
    const warning = `the certificate expired at ${new Date(expiresAt).toISOString()}`
    expect(about(warning)).toEqual([])
    const metrics = await (await fetch(twin.cloud.metricsAddress)).text()
    expect(metrics).toContain(`tallygate_certificate_expiry_timestamp_seconds ${expiresAt / 1_000}\n`)
    await twin.advance(2 * DAY)
    expect(about(warning)).toEqual([expect.objectContaining({ level: 40, code: 'CERTIFICATE_NOT_VALID' })])
  })

  it('names no administration key that is not there', async () => {
    const { log, about } = logger()
    await using twin = await openTwin(undefined, log)
    const { administrationKeyFile } = twin.cloud
    await twin.stop()
    await rm(administrationKeyFile)
    // It reads the key.
    await expect(twin.start()).rejects.toThrow('ENOENT')
    const named = about('listening').map((line) => pick(line, 'adminKeyFile'))
    expect(named).toEqual([administrationKeyFile, null])
  })

  it('gets one line a minute for requests that find no place', async () => {
    const { log, about } = logger()
    await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, requestsMax: 1 } }), log)
    const instance = await twin.instance()
    let refused = 0
    while (refused < 3) {
      const answers = await Promise.all(Array.from({ length: 20 }, () => twin.access(instance, { Print: 1 })))
      refused += answers.filter(({ status }) => status === 503).length
    }
    expect(about('request failed')).toEqual([
      expect.objectContaining({ requests: 1, err: expect.objectContaining({ code: 'OVERLOADED' }) as unknown }),
    ])
  })

  it('gets one line a minute for entries of a device that are not billed', async () => {
    const { log, about } = logger()
    await using twin = await openTwin(undefined, log)
    const instance = await twin.instance()
    const devices = [await EdgeClient.join(twin, instance), await EdgeClient.join(twin, instance)]
    for (const { device } of [...devices, ...devices]) {
      const payload = device.payload()
      // No epoch before the current one.
      const entries = { first: 1, previousHash: CHAIN_START, head: entryHash(CHAIN_START, '{}'), bodies: ['{}'] }
      const undeliveredRange = { epoch: payload.epoch, entries, final: false }
      const sealed = await device.sealAs({ ...payload, undeliveredRange })
      Object.assign(device.state, { unacknowledged: sealed, seq: sealed.seq, hash: sealed.hash })
      const taken = await device.twin.sync(device.id, sealed.document)
      if (!taken.accepted) throw new Error(taken.problem)
      expect(await device.accept(taken.answer)).toMatchObject({ outcome: 'MERGED', unbilled: 1 })
    }
    expect(about('entries are not billed')).toEqual(
      devices.map(({ id }) => expect.objectContaining({ deviceId: id, entries: 1, segments: 1 }) as unknown),
    )
  })

  it('gets one short line a minute for connections that the broker refuses', async () => {
    const { log, about } = logger()
    await using twin = await openTwin(undefined, log)
    const instanceIds = [await twin.instance()]
    const { keys } = await EdgeClient.join(twin, instanceIds[0] ?? '')
    const { body: issued } = await twin.call('POST', `${EDGE}/enrollment-tokens`, { body: { instanceIds } })
    const { body } = await twin.call('POST', `${EDGE}/enrollments`, {
      token: text(issued, 'token'),
      body: { publicKey: keys.jwk },
    })
    const clientId = 'x'.repeat(5_000)
    for (const password of ['one', 'two', 'three']) {
      const attempt = Listener.connect(text(body, 'addresses', 'push'), { clientId, username: clientId, password })
      await expect(attempt).rejects.toThrow(/Connection refused/)
    }
    expect(about('devices were refused at the broker')).toEqual([
      expect.objectContaining({ clientId: 'x'.repeat(36), reason: 'TOKEN_INVALID', times: 1 }),
    ])
  })
})
