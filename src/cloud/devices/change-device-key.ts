/** Key rotation. Both keys are accepted until the next one is first used. A replaced key is never accepted again. */
import { recordChange } from '../storage/audit.ts'
import { deviceEvent } from '../events/device-event.ts'
import type { Actor } from '../storage/audit-records.ts'
import type { z } from 'zod'
import { type KeyLink, keyAnswer, keyChange, type keyLinksRequest } from '../../protocol/edge/device-key.ts'
import { CodedError } from '../../protocol/errors.ts'
import { namedKey, openDocument, signDocument, thumbprint } from '../../protocol/signing.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import type { Store, Transaction } from '../storage/store.ts'
import { authenticateDevice } from './authenticate-device.ts'
import { importPublicKey } from './device-key.ts'
import type { Keyring } from './keyring.ts'
import { KEYS_PER_HOUR_MAX, KEYS_WINDOW_MS } from './limits.ts'
import type { Device, DeviceKey } from '../storage/device-records.ts'
import { lockTrusted } from '../storage/require-record.ts'

export interface ChangeDeviceKey {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly keys: Pick<Keyring, 'signer'>
  readonly now: () => number
  /** Closes connections that were opened with the old key. */
  readonly onKeyReplaced: (deviceId: string) => void
}

/** Idempotent for the same link. @throws CodedError DEVICE_KEY_REFUSED, DEVICE_REVOKED */
export async function announceKey(
  { store, keys, now }: Omit<ChangeDeviceKey, 'onKeyReplaced'>,
  deviceId: string,
  nonce: string,
  link: KeyLink,
): Promise<string> {
  const at = now()
  const next = await store.transaction(async (tx) => {
    const device = await lockTrusted(tx, deviceId)
    const change = await openLink(device.id, device, link)
    if (change.nonce !== nonce) throw refused('The nonce of the request is not that of the link.')
    if (change.epoch !== device.epoch) {
      const epochs = `epoch ${change.epoch} of its ledger, but the cloud knows epoch ${device.epoch}`
      throw refused(
        `The device has made its next key in ${epochs}. The device attaches again by itself, and then announces the key again. If this message returns, look for a second device with the same state.`,
      )
    }
    if (device.nextKey?.thumbprint === change.key.thumbprint) return change.key
    await register(tx, device.id, [change.key], at)
    await tx.edge.devices.save({ ...device, nextKey: change.key })
    const detail = { key: change.key.thumbprint }
    await recordChange(tx, at, { action: 'ANNOUNCE_DEVICE_KEY', deviceId: device.id, by: itself(device), detail })
    return change.key
  })
  return signAnswer(keys, deviceId, nonce, next)
}

/**
 * A restored cloud may know only an earlier key: the device proves how it came to its current one. Oldest link first.
 * @throws CodedError DEVICE_KEY_REFUSED, DEVICE_KEY_REPLACED, DEVICE_REVOKED, TOKEN_INVALID, TOKEN_NOT_IN_TIME
 */
export async function showLinks(
  { store, keys, now, onKeyReplaced }: ChangeDeviceKey,
  deviceId: string,
  token: string,
  { nonce, links }: z.infer<typeof keyLinksRequest>,
): Promise<string> {
  const at = now()
  const { newest, isOther } = await store.transaction(async (tx) => {
    const device = await lockTrusted(tx, deviceId)
    const path = await pathFrom(device, links)
    const key = path.at(-1) ?? device
    await authenticateDevice({ device, ...key, state: 'CURRENT' }, token, at)
    if (path.length === 0) return { newest: key, isOther: false }
    // The backup may contain the announcement of the first key.
    const unknown = path.filter((each) => each.thumbprint !== device.nextKey?.thumbprint)
    await register(tx, device.id, unknown, at)
    await replace(tx, device, key, at)
    return { newest: key, isOther: true }
  })
  if (isOther) onKeyReplaced(deviceId)
  return signAnswer(keys, deviceId, nonce, newest)
}

/** Runs at the first use of the next key. Does nothing if it was used already or replaced by a later announcement. */
export async function takeNextKey(
  { store, now, onKeyReplaced }: Omit<ChangeDeviceKey, 'keys'>,
  deviceId: string,
  used: string,
): Promise<void> {
  const at = now()
  const replaced = await store.transaction(async (tx) => {
    const device = await lockTrusted(tx, deviceId)
    const { nextKey } = device
    if (nextKey?.thumbprint !== used) return false
    await replace(tx, device, nextKey, at)
    return true
  })
  if (replaced) onKeyReplaced(deviceId)
}

/** With the key that it had until now. */
function itself({ thumbprint: keyId, name }: Device): Actor {
  return { kind: 'DEVICE', keyId, name, issuer: null }
}

async function replace(tx: Transaction, device: Device, { publicKey, thumbprint: id }: DeviceKey, at: number) {
  await tx.edge.devices.save({ ...device, publicKey, thumbprint: id, keySince: at, nextKey: null, replaceKey: null })
  await recordChange(tx, at, {
    action: 'REPLACE_DEVICE_KEY',
    deviceId: device.id,
    by: itself(device),
    detail: { key: id },
  })
  const detail = { previousKeyId: device.thumbprint, keyId: id }
  await tx.events.append(deviceEvent(device, { type: 'device.key-changed', what: `key-changed/${id}`, at, detail }))
}

async function register(tx: Transaction, deviceId: string, keys: readonly DeviceKey[], at: number): Promise<void> {
  const recent = await tx.edge.devices.keysBetween(deviceId, at - KEYS_WINDOW_MS, at)
  if (recent + keys.length > KEYS_PER_HOUR_MAX) throw refused(`This device had ${recent} keys within an hour.`)
  for (const key of keys) {
    if (await tx.edge.devices.registerKey(deviceId, key, at)) continue
    throw refused('The next key is, or was, that of a device.')
  }
}

/** @param previous the key that must have signed the introduction */
async function openLink(deviceId: string, previous: DeviceKey, link: KeyLink) {
  const before = importPublicKey(previous.publicKey)
  if (before === undefined) throw new Error('invariant: the key of a device was usable when it was registered')
  const text = await openDocument('device-key', link.introduction, before)
  if (text === undefined) throw refused('The introduction is not signed by the key that the device has.')
  const change = keyChange.safeParse(parseJson(text)).data
  if (change === undefined) throw refused('The introduction does not have the form of one.')
  if (change.deviceId !== deviceId) throw refused('The introduction is of another device.')
  if (change.previous !== previous.thumbprint) throw refused('The introduction names another key before it.')
  const next = importPublicKey(change.next)
  if (next === undefined) throw refused('The next key is not a usable public key.')
  if ((await openDocument('device-key-possession', link.possession, next)) !== text) {
    throw refused('The next key has not signed what introduces it.')
  }
  const { epoch, nonce } = change
  return { key: { publicKey: change.next, thumbprint: await thumbprint(change.next) }, epoch, nonce }
}

/**
 * The keys from the known one to the newest; empty if the newest is known.
 * @throws CodedError TOKEN_INVALID if the links do not lead to it from the known one, DEVICE_KEY_REFUSED
 */
async function pathFrom(device: Device, links: readonly KeyLink[]): Promise<readonly DeviceKey[]> {
  const known = links.findIndex(({ introduction }) => namedKey(introduction) === device.thumbprint)
  if (known === -1) {
    const newest = links.at(-1)
    if (newest !== undefined && namedKey(newest.possession) === device.thumbprint) return []
    const message = 'The cloud knows this device by another key, and no link of the device leads on from it.'
    throw new CodedError('TOKEN_INVALID', message)
  }
  const path: DeviceKey[] = []
  let at: DeviceKey = device
  for (const link of links.slice(known)) {
    at = (await openLink(device.id, at, link)).key
    path.push(at)
  }
  return path
}

async function signAnswer({ signer }: Pick<Keyring, 'signer'>, deviceId: string, nonce: string, key: DeviceKey) {
  const payload: z.input<typeof keyAnswer> = { deviceId, nonce, keyId: key.thumbprint }
  return signDocument('device-key-answer', JSON.stringify(payload), signer)
}

function refused(message: string): CodedError {
  return new CodedError('DEVICE_KEY_REFUSED', message)
}
