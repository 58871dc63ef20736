// How a device replaces its key, for every store.
import { randomUUID } from 'node:crypto'
import { SignJWT } from 'jose'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Authenticator } from '../../../src/cloud/service-api/authenticate.ts'
import { announceKey, showLinks, takeNextKey } from '../../../src/cloud/devices/change-device-key.ts'
import { revokeDevice, rotateDeviceKey } from '../../../src/cloud/devices/devices.ts'
import { KEYS_PER_HOUR_MAX, KEYS_WINDOW_MS } from '../../../src/cloud/devices/limits.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { type KeyLink, keyAnswer } from '../../../src/protocol/edge/device-key.ts'
import { algorithmOf, openDocument, unverifiedText } from '../../../src/protocol/signing.ts'
import { type KeyLinkOptions, NONCE, keyLink } from './key-link.ts'
import { type DeviceKeys, TestDevice, newDeviceKeys, topUpRequest } from '../sync/test-device.ts'
import { INSTANCE, type Twin } from '../sync/twin.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)

/** @param open a twin with nothing in it but the instance */
export function deviceKeySuite(name: string, open: () => Promise<Twin>): void {
  describe(name, () => {
    let twin: Twin
    let device: TestDevice
    let old: DeviceKeys
    let next: DeviceKeys
    let dropped: string[]
    let authenticator: Authenticator
    beforeEach(async () => {
      twin = await open()
      await twin.setLineItem('ACT-1', { quantity: 1_000n })
      device = await TestDevice.join(twin)
      old = device.keys
      next = await newDeviceKeys()
      dropped = []
      authenticator = new Authenticator({
        store: twin.store,
        defer: (call) => call(),
        takeNextKey: (id, used) => takeNextKey(parts(), id, used),
        signIn: null,
      })
    })
    afterEach(async () => twin[Symbol.asyncDispose]())

    const parts = () => ({
      store: twin.store,
      keys: twin.keys,
      now: twin.now,
      onKeyReplaced: (id: string) => void dropped.push(id),
    })
    const link = (change: Partial<KeyLinkOptions> = {}): Promise<KeyLink> =>
      keyLink({ deviceId: device.id, epoch: device.state.epoch, from: old, to: next, ...change })
    const announce = async (made: KeyLink | Promise<KeyLink>, nonce = NONCE) =>
      announceKey(parts(), device.id, nonce, await made)
    const token = (keys: DeviceKeys, issuer = device.id): Promise<string> =>
      new SignJWT({ cnf: { jwk: { kid: keys.signer.keyId, kty: 'CLIENT' } }, aud: [INSTANCE] })
        .setProtectedHeader({ alg: algorithmOf(keys.signer.privateKey), typ: 'JWT' })
        .setIssuer(issuer)
        .setNotBefore(twin.time / 1000 - 60)
        .setIssuedAt(twin.time / 1000 - 60)
        .setExpirationTime(twin.time / 1000 + 300)
        .sign(keys.signer.privateKey)
    const callWith = async (keys: DeviceKeys) =>
      (await authenticator.authenticate(`Bearer ${await token(keys)}`, twin.time)).deviceId
    const show = async (links: readonly KeyLink[], by: DeviceKeys) =>
      showLinks(parts(), device.id, await token(by), { nonce: NONCE, links: [...links] })
    const signedWith = async (keys: DeviceKeys) => (await device.sealAs(device.payload(), keys.signer)).document
    const audit = async () =>
      (await twin.store.read((reader) => reader.edge.audit.list({ deviceId: device.id }, 10))).records.filter(
        ({ action }) => action === 'ROTATE_DEVICE_KEY' || action === 'REPLACE_DEVICE_KEY',
      )
    const isRefused = { code: 'DEVICE_KEY_REFUSED' }

    it('accepts both keys after the announcement, and only the next one after its first use', async () => {
      const document = await announce(link())
      const text = await openDocument('device-key-answer', document, twin.keys.trusted[0].publicKey)
      expect(keyAnswer.parse(JSON.parse(text ?? ''))).toEqual({
        deviceId: device.id,
        nonce: NONCE,
        keyId: next.signer.keyId,
      })
      expect(await callWith(old)).toBe(device.id)
      expect(await audit()).toEqual([])
      twin.time += 5_000
      expect(await callWith(next)).toBe(device.id)
      await expect(callWith(old)).rejects.toMatchObject({ code: 'DEVICE_KEY_REPLACED' })
      expect(await callWith(next)).toBe(device.id)
      expect(await twin.device(device.id)).toMatchObject({
        thumbprint: next.signer.keyId,
        publicKey: next.jwk,
        keySince: twin.time,
        nextKey: null,
      })
      expect(await audit()).toMatchObject([
        { action: 'REPLACE_DEVICE_KEY', by: { kind: 'DEVICE', keyId: old.signer.keyId }, at: twin.time },
      ])
      expect(dropped).toEqual([device.id])
    })

    it('gives the same answer to the same announcement, and to another one of the same key', async () => {
      const made = await link()
      const first = await announce(made)
      expect(unverifiedText(await announce(made))).toBe(unverifiedText(first))
      await announce(link({ nonce: 'another-nonce-of-16' }), 'another-nonce-of-16')
      expect(await twin.device(device.id)).toMatchObject({ nextKey: { thumbprint: next.signer.keyId } })
    })

    it('keeps the current key if the device has lost the announced one, and accepts another announcement', async () => {
      await announce(link())
      const third = await newDeviceKeys()
      await announce(link({ to: third }))
      await expect(callWith(next)).rejects.toMatchObject({ code: 'DEVICE_KEY_REPLACED' })
      expect(await callWith(old)).toBe(device.id)
      expect(await callWith(third)).toBe(device.id)
    })

    it.each<[string, (other: TestDevice) => Promise<Partial<KeyLinkOptions>>]>([
      ['a next key that did not sign it', async () => ({ possessedBy: old })],
      ['an introduction by a stranger', async () => ({ from: await newDeviceKeys() })],
      ['a link of another device', async (other) => ({ deviceId: other.id })],
      ['a link of another epoch', async () => ({ epoch: device.state.epoch + 1 })],
      ['a link from another key than signed it', async () => ({ previous: next.signer.keyId })],
      ['the key of another device', async (other) => ({ to: other.keys })],
      ['the key that it has', async () => ({ to: old })],
      ['a nonce that is not that of the request', async () => ({ nonce: 'some-other-nonce-0' })],
    ])('refuses %s', async (_, change) => {
      const other = await TestDevice.join(twin)
      await expect(announce(link(await change(other)))).rejects.toMatchObject(isRefused)
      expect(await twin.device(device.id)).toMatchObject({ thumbprint: old.signer.keyId, nextKey: null })
    })

    it('refuses an announcement with swapped documents, or with a segment as one of them', async () => {
      const { introduction, possession } = await link()
      await expect(announce({ introduction: possession, possession: introduction })).rejects.toMatchObject(isRefused)
      const asSegment = await signedWith(old)
      await expect(announce({ introduction: asSegment, possession })).rejects.toMatchObject(isRefused)
    })

    it('refuses a replaced key permanently, on any device', async () => {
      await announce(link())
      await callWith(next)
      await expect(announce(link({ from: next, to: old }))).rejects.toMatchObject(isRefused)
      const other = await TestDevice.join(twin)
      const theirs = { deviceId: other.id, epoch: other.state.epoch, from: other.keys }
      await expect(announceKey(parts(), other.id, NONCE, await link({ ...theirs, to: old }))).rejects.toMatchObject(
        isRefused,
      )
      await expect(twin.enroll(await twin.enrollmentToken(), old.jwk)).rejects.toMatchObject({
        code: 'ENROLLMENT_REFUSED',
      })
    })

    it('refuses a repeated announcement after a later key replacement', async () => {
      const first = await link()
      await announce(first)
      await callWith(next)
      const third = await newDeviceKeys()
      await announce(link({ from: next, to: third }))
      await callWith(third)
      await expect(announce(first)).rejects.toMatchObject(isRefused)
      await expect(show([first], next)).rejects.toMatchObject({ code: 'TOKEN_INVALID' })
      expect(await twin.device(device.id)).toMatchObject({ thumbprint: third.signer.keyId, nextKey: null })
    })

    it('refuses every key operation of a revoked device', async () => {
      await announce(link())
      await revokeDevice(twin, device.id)
      await expect(announce(link())).rejects.toMatchObject({ code: 'DEVICE_REVOKED' })
      await expect(callWith(next)).rejects.toMatchObject({ code: 'DEVICE_REVOKED' })
      await expect(show([await link()], next)).rejects.toMatchObject({ code: 'DEVICE_REVOKED' })
    })

    it('limits the new keys of one device in an hour', async () => {
      for (let made = 1; made < KEYS_PER_HOUR_MAX; made += 1) await announce(link({ to: await newDeviceKeys() }))
      await expect(announce(link())).rejects.toMatchObject(isRefused)
      twin.time += KEYS_WINDOW_MS
      await announce(link())
    })

    it('lets a device enroll again with the token that it used under an earlier key', async () => {
      const keys = await newDeviceKeys()
      const enrollment = await twin.enrollmentToken()
      const { deviceId } = await twin.enroll(enrollment, keys.jwk)
      await announceKey(parts(), deviceId, NONCE, await link({ deviceId, epoch: 0, from: keys }))
      await authenticator.authenticate(`Bearer ${await token(next, deviceId)}`, twin.time)
      expect(await twin.enroll(enrollment, next.jwk)).toMatchObject({ deviceId })
    })

    describe('a segment that was sealed under the key before', () => {
      it('is merged once, and gets the same response byte for byte when it is sent again', async () => {
        await device.sync([topUpRequest(LINE, 100n)])
        device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: 30n })
        const sealed = await device.seal()
        await announce(link())
        await callWith(next)
        const taken = await twin.sync(device.id, sealed.document)
        expect(taken).toMatchObject({ accepted: true })
        expect(await twin.sync(device.id, sealed.document)).toEqual(taken)
        expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 30n })
        if (taken.accepted) await device.accept(taken.answer)
        const third = await twin.sync(device.id, await signedWith(next))
        expect(third).toMatchObject({ accepted: true })
        expect(await twin.store.read((reader) => reader.edge.evidence.kinds(device.id))).toEqual(new Set())
      })

      it('is refused when a key of another device has signed it', async () => {
        const other = await TestDevice.join(twin)
        expect(await twin.sync(device.id, await signedWith(other.keys))).toMatchObject({ accepted: false })
      })
    })

    describe('a twin that knows an earlier key only', () => {
      let third: DeviceKeys
      let links: KeyLink[]
      beforeEach(async () => {
        third = await newDeviceKeys()
        // The epoch of then is not the one that the restored twin knows.
        links = [await link({ epoch: 7 }), await link({ epoch: 9, from: next, to: third })]
      })

      it('follows the links to the newest key, and accepts segments sealed with the keys in between', async () => {
        await show(links, third)
        expect(await callWith(third)).toBe(device.id)
        await expect(callWith(old)).rejects.toMatchObject({ code: 'DEVICE_KEY_REPLACED' })
        await expect(callWith(next)).rejects.toMatchObject({ code: 'DEVICE_KEY_REPLACED' })
        expect(await twin.sync(device.id, await signedWith(next))).toMatchObject({ accepted: true })
        expect(unverifiedText(await show(links, third))).toBe(unverifiedText(await show(links, third)))
        expect(await audit()).toMatchObject([
          { action: 'REPLACE_DEVICE_KEY', by: { kind: 'DEVICE', keyId: old.signer.keyId } },
        ])
      })

      it('starts from the key it knows, whether that was announced or used', async () => {
        await announce(link())
        await show(links, third)
        expect(await callWith(third)).toBe(device.id)
      })

      it('refuses links to a caller without the newest key', async () => {
        await expect(show(links, next)).rejects.toMatchObject({ code: 'TOKEN_INVALID' })
        await expect(show(links, old)).rejects.toMatchObject({ code: 'TOKEN_INVALID' })
        const stranger = await newDeviceKeys()
        const forged = { ...stranger, signer: { ...stranger.signer, keyId: third.signer.keyId } }
        await expect(show(links, forged)).rejects.toMatchObject({ code: 'TOKEN_INVALID' })
        expect(await callWith(old)).toBe(device.id)
      })

      it('refuses a forged link, and does not know a key to which the links do not lead', async () => {
        const isUnknown = { code: 'TOKEN_INVALID', message: expect.stringContaining('no link of the device') as string }
        await expect(show(links.slice(1), third)).rejects.toMatchObject(isUnknown)
        const forged = await link({ from: next, to: third, possessedBy: next })
        await expect(show([links[0]!, forged], third)).rejects.toMatchObject(isRefused)
        const other = await TestDevice.join(twin)
        await expect(
          showLinks(parts(), other.id, await token(third, other.id), { nonce: NONCE, links }),
        ).rejects.toMatchObject(isUnknown)
      })
    })

    it('requests a key replacement until the device has replaced the key', async () => {
      await rotateDeviceKey({ store: twin.store, now: twin.now }, device.id)
      expect(await device.sync()).toMatchObject({ replaceKey: old.signer.keyId })
      await announce(link())
      expect(await device.sync()).toMatchObject({ replaceKey: old.signer.keyId })
      await callWith(next)
      expect(await device.sync()).not.toHaveProperty('replaceKey')
      expect(await audit()).toMatchObject([{ action: 'REPLACE_DEVICE_KEY' }, { action: 'ROTATE_DEVICE_KEY' }])
      await expect(rotateDeviceKey({ store: twin.store, now: twin.now }, randomUUID())).rejects.toMatchObject({
        code: 'NOT_FOUND',
      })
    })
  })
}
