/**
 * The device's status in one sentence, for readers who do not know the documentation. The most severe problem is shown;
 * being offline is no problem while decisions are possible.
 */
import { available } from '../../core/accounts/grant.ts'
import { roughly, tokensInWords } from '../../core/accounts/in-words.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import type { AgentStatusWire } from '../../protocol/local/status.ts'
import type { DeviceReportWire } from '../../protocol/local/report.ts'

type HealthStatus = DeviceReportWire['health']

export function healthStatusOf(status: AgentStatusWire): HealthStatus {
  const { deviceId, epoch, fenced, suspension, policies, grant, connected, conditions, sessions } = status
  const refusing = (sentence: string): HealthStatus => ({ level: 'refusing', sentence })
  const attention = (sentence: string): HealthStatus => ({ level: 'attention', sentence })

  if (deviceId === null) return refusing('This device is not enrolled yet: it grants nothing.')
  if (suspension !== null) return refusing(`${suspensionSentence(suspension)} It refuses every request.`)
  if (conditions.some(({ subject }) => subject === 'ledger')) {
    return refusing('This device cannot record anything, so it refuses every request.')
  }
  if (fenced) return refusing('The cloud has stopped this device; it refuses every request until it has attached anew.')
  if (!policies.some(({ applied }) => applied > 0)) {
    return refusing('This device has no rules yet: it refuses every request until the cloud has sent them.')
  }
  if (epoch === 0) return refusing('This device has not attached to the cloud yet: it refuses every request.')

  const lines = status.accounts.filter(({ account }) => account.startsWith('line/'))
  const hasUnlimited = lines.some(({ unlimited }) => unlimited)
  const left = lines.reduce((sum, account) => sum + available(countersOf(account)), 0n)
  const isDry = !hasUnlimited && left === 0n
  const atHand = hasUnlimited ? 'tokens without limit' : `${tokensInWords(left)} tokens`
  if (conditions.some(({ code }) => code === 'DEVICE_REVOKED')) {
    const remaining = grant?.remainingMs ?? 0
    return isDry || remaining === 0
      ? refusing('The key of this device was revoked, and no usable tokens are left: the device refuses every charge.')
      : attention(
          `The key of this device was revoked: it delivers nothing more, and continues with ${atHand} at hand for ${inWords(remaining)} more.`,
        )
  }
  if (grant === null && !connected) return refusing('This device has no grant, and the cloud is out of reach.')
  if (grant?.remainingMs === 0) {
    return connected
      ? attention('The grant of this device has expired; it asks the cloud for another one.')
      : refusing('The grant of this device has expired: it refuses every charge until it reaches the cloud.')
  }
  if (!connected) {
    return isDry
      ? refusing(
          'This device is offline and has used up its tokens: it refuses every charge until it reaches the cloud.',
        )
      : attention(
          `This device is offline and continues to decide, with ${atHand} at hand for ${inWords(grant?.remainingMs ?? 0)} more.`,
        )
  }
  if (sessions.some(({ state }) => state === 'LOCKED')) {
    return attention('An administrator has locked the session of this device in the cloud.')
  }
  const usedUp = conditions.filter(({ code }) => code === 'TOKENS_USED_UP')
  if (isDry && usedUp.length > 0)
    return refusing(
      'The tokens of this device are used up, in the cloud too: it refuses every charge until there are more.',
    )
  if (isDry)
    return attention('This device is connected, and has no tokens at hand: it asks the cloud with each request.')
  const [low] = [...usedUp, ...conditions.filter(({ code }) => code === 'TOKENS_LOW')]
  if (low !== undefined) return attention(low.message)
  if (conditions.length > 0) {
    return attention(
      `This device is working, with ${conditions.length === 1 ? 'one problem' : `${conditions.length} problems`} to look at.`,
    )
  }
  return { level: 'ok', sentence: `This device is working: connected, with ${atHand} at hand.` }
}

export function suspensionSentence({ state, since }: DeviceSuspension): string {
  const done = state === 'LOCKED' ? 'has locked this device' : 'has ended the service of this device'
  return `An administrator ${done}, at ${new Date(since).toISOString()}.`
}

/** Whether the cloud responds, and whether it accepts this device. */
export function cloudInWords({ connected, conditions }: Pick<AgentStatusWire, 'connected' | 'conditions'>): string {
  if (!connected) return 'not connected'
  return conditions.some(({ code }) => code === 'DEVICE_REVOKED')
    ? 'responds, but refuses this device: its key was revoked'
    : 'connected'
}

/** Above this uncertainty, ms, decisions may differ from those at the true time. */
const EXACT_MS = 60_000

export function clockHealth({ earliest, latest }: AgentStatusWire['clock']): DeviceReportWire['clock'] {
  if (latest === null) return { health: 'unbounded', widthMs: null }
  const widthMs = Math.max(0, latest - earliest)
  return { health: widthMs <= EXACT_MS ? 'exact' : 'rough', widthMs }
}

export function inWords(ms: number): string {
  return ms < 2_000 ? 'a second' : roughly(ms)
}

export function countersOf({ granted, used, refunded, returned }: AgentStatusWire['accounts'][number]) {
  return { granted: BigInt(granted), used: BigInt(used), refunded: BigInt(refunded), returned: BigInt(returned) }
}
