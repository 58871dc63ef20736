/** Retries until the broker acknowledges. Devices also poll, so correctness does not depend on delivery. */
import type { z } from 'zod'
import { type deviceNotification, deviceTopic, type policyNotification, policyTopic } from '../../protocol/push.ts'
import type { ChangeNotification, OutboxMessage } from '../storage/records.ts'
import type { Store } from '../storage/store.ts'
import type { Timers } from '../runtime/run-repeatedly.ts'
import { INSTANCES_PER_ROUND, NOTIFICATIONS_PER_ROUND, NOTIFICATION_CLAIM_MS } from './limits.ts'
import type { Log } from '../../protocol/log.ts'

export interface Broker {
  /** False: notifications wait, and any node may publish them. */
  readonly isConnected: boolean
  publish(message: PushMessage): Promise<void>
}

export interface PushMessage {
  readonly topic: string
  readonly payload: string
  readonly retain: boolean
}

export interface NotificationPublisherOptions {
  readonly store: Pick<Store, 'transaction' | 'read' | 'onOutbox'>
  readonly broker: Broker
  readonly now: () => number
  readonly timers: Timers
  readonly log: Pick<Log, 'info' | 'warn'>
  readonly lookEveryMs: number
}

export class NotificationPublisher {
  readonly #options: NotificationPublisherOptions
  readonly #stops: (() => void)[] = []
  #round: Promise<void> | undefined
  #again = false
  #stopped = false
  /** Ids of the notifications that this node is publishing. */
  #claimed: readonly bigint[] = []
  #renewal: Promise<void> = Promise.resolve()
  /** Policies of the instances after this id are still to be announced; null: none. */
  #announceAfter: string | null = null
  #hasFailed = false

  constructor(options: NotificationPublisherOptions) {
    this.#options = options
  }

  start(): void {
    const { store, timers, lookEveryMs } = this.#options
    this.#stops.push(
      store.onOutbox(() => this.wake()),
      timers.every(lookEveryMs, async () => {
        this.#renewal = this.#renew()
        await this.#renewal
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

  /** Publishes every instance's newest revision after the waiting notifications: the broker may have lost its messages. */
  announcePolicies(): void {
    this.#announceAfter = ''
    this.wake()
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
    const { broker, log } = this.#options
    try {
      while (!this.#stopped && broker.isConnected) {
        if (!(await this.#publishSome()) && !(await this.#announceSome())) break
      }
      if (this.#hasFailed && broker.isConnected) {
        this.#hasFailed = false
        log.warn({}, 'change notifications are published again')
      }
    } catch (error) {
      // The next look, or the next connection, retries.
      if (!this.#hasFailed) log.warn({ err: error }, 'change notifications were not published')
      this.#hasFailed = true
    }
  }

  async #publishSome(): Promise<boolean> {
    const { store, broker, now } = this.#options
    const claimed = await store.transaction(async (tx) => {
      const at = now()
      return tx.outbox.claim(NOTIFICATIONS_PER_ROUND, at, at + NOTIFICATION_CLAIM_MS)
    })
    if (claimed.length === 0) return false
    this.#claimed = claimed.map(({ id }) => id)
    const published: bigint[] = []
    try {
      for (const { ids, notification } of bySubject(claimed)) {
        await broker.publish(messageOf(notification))
        published.push(...ids)
      }
    } finally {
      const remaining = this.#claimed.filter((id) => !published.includes(id))
      this.#claimed = []
      await this.#renewal
      await store.transaction(async (tx) => {
        await tx.outbox.remove(published)
        await tx.outbox.claimUntil(remaining, 0)
      })
    }
    return true
  }

  /** Keeps other nodes from publishing what waits for the broker's acknowledgement here. */
  async #renew(): Promise<void> {
    const { store, now } = this.#options
    const ids = this.#claimed
    if (ids.length === 0) return
    // Without it, another node publishes them too, which does no harm.
    await store.transaction((tx) => tx.outbox.claimUntil(ids, now() + NOTIFICATION_CLAIM_MS)).catch(() => undefined)
  }

  async #announceSome(): Promise<boolean> {
    const { store, broker } = this.#options
    const after = this.#announceAfter
    if (after === null) return false
    const list = () => store.read((reader) => reader.policyRevisions.list(after, INSTANCES_PER_ROUND))
    const published = new Map<string, number>()
    let page = await list()
    for (;;) {
      const newer = page.filter(({ instanceId, revision }) => published.get(instanceId) !== revision)
      if (newer.length === 0) break
      for (const { instanceId, revision } of newer) {
        await broker.publish(messageOf({ kind: 'policy', instanceId, revision }))
        published.set(instanceId, revision)
      }
      // Another node may have published a newer revision before this older one.
      page = await list()
    }
    // A new connection starts over.
    if (this.#announceAfter === after) this.#announceAfter = page.at(-1)?.instanceId ?? null
    return true
  }
}

/** The last notification about an instance or a device replaces the earlier ones. */
function bySubject(
  messages: readonly OutboxMessage[],
): readonly { readonly ids: readonly bigint[]; readonly notification: ChangeNotification }[] {
  const subjects = new Map<string, { ids: bigint[]; notification: ChangeNotification }>()
  for (const { id, notification } of messages) {
    const subject =
      notification.kind === 'policy'
        ? `policy ${notification.instanceId}`
        : `device ${notification.deviceId} ${notification.reason}`
    const ids = subjects.get(subject)?.ids ?? []
    subjects.delete(subject)
    subjects.set(subject, { ids: [...ids, id], notification })
  }
  return [...subjects.values()]
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
