/**
 * Rotates the device key. The next key is durable before it is announced, and used only after the cloud's signed answer
 * is in the journal. Every step can be repeated; until the next key is used, the cloud accepts both.
 */
import type { LinkState } from '../../core/sync/plan.ts'
import { type KeyChange, KEY_LINKS_MAX, type KeyLink, keyAnswer } from '../../protocol/edge/device-key.ts'
import { CodedError } from '../../protocol/errors.ts'
import { signDocument } from '../../protocol/signing.ts'
import type { SignedAnswer } from './cloud.ts'
import type { DeviceKey, DeviceKeys } from '../keys/device-key.ts'
import { type LinkMemory, identityOf, saveIdentity } from './memory.ts'
import { call, raiseAndLog, type StepContext, type StepResult, verify, applySignedTime } from './step.ts'

export const KEY = 'device key'

export function keyState(keys: DeviceKeys, memory: LinkMemory, isRotationRequested: boolean): LinkState['key'] {
  const { identity, key, epoch } = memory
  if (identity === null) return 'SETTLED'
  const ready = keys.next?.signer.keyId
  if (ready !== undefined && ready === identity.keyId) return key.isTried ? 'SETTLED' : 'REPLACE'
  if (key.isUnknown && !key.isShown) return 'SHOW'
  const announcing = identity.nextKey?.id
  if (isRotationRequested || (key.isRequested && announcing === undefined)) return 'PREPARE'
  if (announcing === undefined) return 'SETTLED'
  // The cloud refuses a key of another epoch than its own, which may already exist.
  if (key.isTried || epoch === 0) return 'SETTLED'
  return announcing === ready ? 'ANNOUNCE' : 'PREPARE'
}

export async function prepareKey(context: StepContext): Promise<StepResult> {
  const { keys, clock, memory, rotation, health, log } = context
  // A waiting technician gets the response; for other requests a condition is raised.
  const isPending = memory.key.isRequested || (memory.identity?.nextKey ?? null) !== null
  memory.key.isRequested = false
  try {
    // The cloud would refuse the same key again.
    if (memory.key.isRefused && rotation.isRequested) await keys.discard()
    const next = (await keys.prepare()).signer.keyId
    const identity = identityOf(memory)
    if (identity.nextKey?.id !== next) {
      const since = identity.nextKey?.since ?? clock.reading().now
      await saveIdentity(context, { ...identity, nextKey: { id: next, since } })
      log.info({ key: identity.keyId, next }, 'the device key will be replaced')
    }
    memory.key.isRefused = false
    health.clear(KEY)
    rotation.taken({ key: identity.keyId, next })
    return 'PLAN_AGAIN'
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    rotation.failed(error)
    memory.key.isTried = true
    return isPending ? continueWithout(context, error) : 'PLAN_AGAIN'
  }
}

/** After a refusal the device keeps its key and tries again in the next round. */
export async function announceKey(context: StepContext): Promise<StepResult> {
  const { cloud, keys, clock, memory, randomness, signal } = context
  const { current, next } = keys
  if (next === null) throw new Error('invariant: only a key that is there is announced')
  memory.key.isTried = true
  const identity = identityOf(memory)
  const nonce = randomness.token()
  const change = { deviceId: identity.deviceId, epoch: memory.epoch, nonce }
  const link = await linkOf(change, current, next)
  let response: SignedAnswer
  try {
    response = await call(context, () => cloud.announceKey(identity, { nonce, link }, signal))
  } catch (error) {
    if (!(error instanceof CodedError) || error.code === 'CLOUD_UNREACHABLE') throw error
    if (isUnknownKey(context, error)) throw error
    memory.key.isRefused = error.code === 'DEVICE_KEY_REFUSED'
    return continueWithout(context, error)
  }
  await verifyKey(context, response, nonce, next)
  const keyLinks = [...linksOf(context), link].slice(-KEY_LINKS_MAX)
  const { signer } = next
  await saveIdentity(context, {
    ...identityOf(memory),
    keyId: signer.keyId,
    keySince: clock.reading().now,
    keyLinks,
    nextKey: null,
  })
  return replaceKey(context)
}

export async function replaceKey(context: StepContext): Promise<StepResult> {
  const { keys, memory, health, log } = context
  const before = keys.current.signer.keyId
  try {
    await keys.replace(identityOf(memory).keyLinks ?? [])
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    return continueWithout(context, error)
  }
  health.clear(KEY)
  memory.key.isRequested = false
  // The first request with the new key revokes the old one.
  memory.expectsNews = true
  log.info({ key: keys.current.signer.keyId, before }, 'the device key was replaced')
  return 'PLAN_AGAIN'
}

function continueWithout(context: StepContext, error: CodedError): StepResult {
  context.memory.key.isTried = true
  raiseAndLog(context, KEY, error)
  return 'PLAN_AGAIN'
}

export async function showLinks(context: StepContext): Promise<StepResult> {
  const { cloud, keys, memory, randomness, signal, health, log } = context
  const identity = identityOf(memory)
  const { current } = keys
  memory.key.isShown = true
  const nonce = randomness.token()
  const request = { nonce, links: [...linksOf(context)] }
  const response = await call(context, () => cloud.showKeyLinks(identity, request, signal))
  await verifyKey(context, response, nonce, current)
  memory.key.isUnknown = false
  health.clear(KEY)
  log.info({ key: current.signer.keyId }, 'the restored cloud knows the key of this device again')
  return 'PLAN_AGAIN'
}

/** Whether the cloud may know only an earlier key, and the device can prove its own. */
export function isUnknownKey(context: StepContext, error: unknown): boolean {
  const { identity, key } = context.memory
  if (!(error instanceof CodedError) || error.code !== 'TOKEN_INVALID' || key.isShown) return false
  return identity !== null && linksOf(context).length > 0
}

/** Of the key file, because a ledger that was lost or restored lacks them; of the ledger if the key is provided. */
export function linksOf({ keys, memory }: Pick<StepContext, 'keys' | 'memory'>): readonly KeyLink[] {
  if (keys.links.length > 0) return keys.links
  const { keyId, keyLinks = [] } = memory.identity ?? {}
  return keyId === keys.current.signer.keyId ? keyLinks : []
}

async function verifyKey(context: StepContext, response: SignedAnswer, nonce: string, key: DeviceKey): Promise<void> {
  const answer = await verify(context, 'device-key-answer', response.answer, keyAnswer)
  await applySignedTime(context, response, nonce)
  const { deviceId } = identityOf(context.memory)
  if (answer.deviceId === deviceId && answer.nonce === nonce && answer.keyId === key.signer.keyId) return
  throw new CodedError('ANSWER_UNEXPECTED', 'The answer belongs to another change of a key.', {
    details: { deviceId: answer.deviceId, keyId: answer.keyId },
  })
}

async function linkOf(
  change: Pick<KeyChange, 'deviceId' | 'epoch' | 'nonce'>,
  from: DeviceKey,
  to: DeviceKey,
): Promise<KeyLink> {
  const payload: KeyChange = { ...change, previous: from.signer.keyId, next: to.publicJwk }
  const text = JSON.stringify(payload)
  return {
    introduction: await signDocument('device-key', text, from.signer),
    possession: await signDocument('device-key-possession', text, to.signer),
  }
}
