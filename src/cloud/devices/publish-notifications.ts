/**
 * Publishes change notifications until the broker acknowledges them; any node retries. Devices also poll, so
 * correctness does not depend on delivery.
 */
import type { z } from 'zod'
import { type deviceNotification, deviceTopic, type policyNotification, policyTopic } from '../../protocol/push.ts'
import type { ChangeNotification, OutboxMessage } from '../storage/records.ts'
import type { Store } from '../storage/store.ts'
import type { Timers } from '../runtime/run-repeatedly.ts'
import { NOTIFICATIONS_PER_ROUND, NOTIFICATION_CLAIM_MS, INSTANCES_PER_ROUND } from './limits.ts'

export interface Broker {
  publish(message: PushMessage): Promise<void>
}

export interface PushMessage {
  readonly topic: string
  readonly payload: string
  readonly retain: boolean
}

export interface NotificationLog {
  warn(fields: Record<string, unknown>, message: string): void
}

export interface NotificationPublisherOptions {
  readonly store: Pick<Store, 'transaction' | 'onOutbox'>
  readonly broker: Broker
  readonly now: () => number
  readonly timers: Timers
  readonly log: NotificationLog
  /** How often to look for notifications left by another node, ms. */
  readonly lookEveryMs: number
}

/**
 * Publishes every instance's newest revision, for a broker that lost its messages in a restart. Stops at the first
 * failure, which costs only the notifications.
 */
export async function announcePolicies(store: Pick<Store, 'read'>, broker: Broker): Promise<void> {
  for (let offset = 0; ; offset += INSTANCES_PER_ROUND) {
    const notifications = await store.read(async (reader) => {
      const instances = await reader.instances.list(offset, INSTANCES_PER_ROUND)
      const found: ChangeNotification[] = []
      for (const { id } of instances) {
        const newest = await reader.policyRevisions.get(id)
        if (newest !== undefined) found.push({ kind: 'policy', instanceId: id, revision: newest.revision })
      }
      return found
    })
    for (const notification of notifications) await broker.publish(messageOf(notification))
    if (notifications.length < INSTANCES_PER_ROUND) return
  }
}

export class NotificationPublisher {
  readonly #options: NotificationPublisherOptions
  readonly #stops: (() => void)[] = []
  #round: Promise<void> | undefined
  #again = false
  #stopped = false

  constructor(options: NotificationPublisherOptions) {
    this.#options = options
  }

  start(): void {
    const { store, timers, lookEveryMs } = this.#options
    this.#stops.push(
      store.onOutbox(() => this.wake()),
      timers.every(lookEveryMs, async () => {
        this.wake()
        await this.idle()
      }),
    )
    this.wake()
  }

  /** Looks now. Calls during a look cause exactly one more. */
  wake(): void {
    if (this.#stopped) return
    if (this.#round !== undefined) {
      this.#again = true
      return
    }
    this.#round = this.#look().finally(() => {
      this.#round = undefined
      if (!this.#again) return
      this.#again = false
      this.wake()
    })
  }

  async idle(): Promise<void> {
    while (this.#round !== undefined) await this.#round
  }

  async stop(): Promise<void> {
    this.#stopped = true
    for (const stop of this.#stops.splice(0)) stop()
    await this.idle()
  }

  async #look(): Promise<void> {
    try {
      while (!this.#stopped && (await this.#publishSome())) continue
    } catch (error) {
      // The claim expires, and the next look retries.
      this.#options.log.warn({ err: error }, 'change notifications were not published')
    }
  }

  async #publishSome(): Promise<boolean> {
    const { store, broker, now } = this.#options
    const claimed = await store.transaction(async (tx) => {
      const at = now()
      return tx.outbox.claim(NOTIFICATIONS_PER_ROUND, at, at + NOTIFICATION_CLAIM_MS)
    })
    if (claimed.length === 0) return false
    for (const notification of newestOnly(claimed)) await broker.publish(messageOf(notification))
    await store.transaction((tx) => tx.outbox.remove(claimed.map(({ id }) => id)))
    return true
  }
}

/** The last notification about an instance replaces the earlier ones. */
function newestOnly(messages: readonly OutboxMessage[]): readonly ChangeNotification[] {
  const notifications = new Map<string, ChangeNotification>()
  for (const { notification } of messages) {
    const subject =
      notification.kind === 'policy'
        ? `policy ${notification.instanceId}`
        : `device ${notification.deviceId} ${notification.reason}`
    notifications.delete(subject)
    notifications.set(subject, notification)
  }
  return [...notifications.values()]
}

function messageOf(notification: ChangeNotification): PushMessage {
  if (notification.kind === 'policy') {
    const { instanceId, revision } = notification
    const payload: z.input<typeof policyNotification> = { instanceId, revision }
    return { topic: policyTopic(instanceId), payload: JSON.stringify(payload), retain: true }
  }
  const payload: z.input<typeof deviceNotification> = { reason: notification.reason }
  return { topic: deviceTopic(notification.deviceId), payload: JSON.stringify(payload), retain: false }
}
