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

/** Policy notifications repeat with each connection: known revisions are ignored. @param applied by instance */
export function isNews(
  topic: string,
  payload: string,
  deviceId: string,
  applied: ReadonlyMap<string, number>,
): boolean {
  const body = parseJson(payload)
  if (topic === deviceTopic(deviceId)) return deviceNotification.safeParse(body).success
  const { data } = policyNotification.safeParse(body)
  if (data === undefined || topic !== policyTopic(data.instanceId)) return false
  return data.revision > (applied.get(data.instanceId) ?? Infinity)
}
