/**
 * Change notifications from the cloud, whatever carries them. A change notification has no authority: it is counted, and at most makes the device look
 * earlier than it would have looked by itself.
 */
import type { CodedError } from '../../protocol/errors.ts'
import { deviceNotification, deviceTopic, policyNotification, policyTopic } from '../../protocol/push.ts'
import { parseJson } from '../../protocol/parse-json.ts'

export interface PushOptions {
  readonly url: string
  readonly deviceId: string
  readonly instanceIds: readonly string[]
  /** A token that no broker has seen yet, for one attempt to connect. */
  readonly password: () => Promise<string>
  readonly onMessage: (topic: string, payload: string) => void
  readonly onConnection: (connected: boolean) => void
  /** Why there is no connection, or not all of one; called with each attempt that fails. */
  readonly onTrouble: (error: CodedError) => void
}

export interface Push {
  /** Connects, and connects again whenever it is cut off, until the signal. Resolves when the connection is closed. */
  run(options: PushOptions, signal: AbortSignal): Promise<void>
}

export type ChangeNotification =
  { readonly kind: 'LOOK' } | { readonly kind: 'NOTHING_NEW' } | { readonly kind: 'MALFORMED' }

/**
 * What a message says to this device. A policy change notification is retained, so it comes again with each connection: one that names
 * nothing above what is in force is no reason to look.
 *
 * @param applied revision in force, per instance of the device
 */
export function readNotification(
  topic: string,
  payload: string,
  deviceId: string,
  applied: ReadonlyMap<string, number>,
): ChangeNotification {
  const body = parseJson(payload)
  if (topic === deviceTopic(deviceId))
    return { kind: deviceNotification.safeParse(body).success ? 'LOOK' : 'MALFORMED' }
  const notification = policyNotification.safeParse(body)
  if (!notification.success) return { kind: 'MALFORMED' }
  const { instanceId, revision } = notification.data
  const inForce = applied.get(instanceId)
  if (inForce === undefined || topic !== policyTopic(instanceId)) return { kind: 'MALFORMED' }
  return { kind: revision > inForce ? 'LOOK' : 'NOTHING_NEW' }
}
