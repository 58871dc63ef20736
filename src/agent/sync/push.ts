/** Change notifications from the cloud. They carry no authority: a notification at most starts a sync earlier. */
import type { CodedError } from '../../protocol/errors.ts'
import { deviceNotification, deviceTopic, policyNotification, policyTopic } from '../../protocol/push.ts'
import { parseJson } from '../../protocol/parse-json.ts'

export interface PushOptions {
  readonly url: string
  readonly deviceId: string
  readonly instanceIds: readonly string[]
  /** A fresh token for one attempt to connect; brokers have not seen it. */
  readonly password: () => Promise<string>
  readonly onMessage: (topic: string, payload: string) => void
  readonly onConnection: (connected: boolean) => void
  /** Called after each failed or partial attempt to connect. */
  readonly onTrouble: (error: CodedError) => void
}

export interface Push {
  /** Reconnects until the signal aborts. Resolves when the connection is closed. */
  run(options: PushOptions, signal: AbortSignal): Promise<void>
}

export type ChangeNotification = 'NEWS' | 'NOTHING_NEW' | 'MALFORMED'

/** Policy notifications repeat with each connection: known revisions are ignored. @param applied by instance */
export function readNotification(
  topic: string,
  payload: string,
  deviceId: string,
  applied: ReadonlyMap<string, number>,
): ChangeNotification {
  const body = parseJson(payload)
  if (topic === deviceTopic(deviceId)) return deviceNotification.safeParse(body).success ? 'NEWS' : 'MALFORMED'
  const notification = policyNotification.safeParse(body)
  if (!notification.success) return 'MALFORMED'
  const { instanceId, revision } = notification.data
  const inForce = applied.get(instanceId)
  if (inForce === undefined || topic !== policyTopic(instanceId)) return 'MALFORMED'
  return revision > inForce ? 'NEWS' : 'NOTHING_NEW'
}
