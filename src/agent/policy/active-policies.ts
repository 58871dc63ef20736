/**
 * The rules in force, one policy per instance, as the access path reads them. A policy is swapped as a whole; it goes on
 * being usable for as long as its document says from the last time at which the cloud signed that it is still the newest.
 */
import type { CompiledPolicy } from '../../core/rules/compile.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import type { PolicyDocument } from '../../protocol/edge/policy-document.ts'
import type { Confirmation } from '../ledger/journal.ts'

/** A policy in force: verified, complete, durable. */
export interface PolicyInForce {
  readonly document: PolicyDocument
  readonly compiled: CompiledPolicy
}

export class ActivePolicies {
  readonly #policies = new Map<string, PolicyInForce>()
  /** Per instance, when the cloud last said so of a revision: of the one in force, and of the newest. */
  readonly #confirmedAt = new Map<string, Map<number, number>>()

  #suspension: DeviceSuspension | null = null

  /** What an administrator has decided about the device as a whole; null: nothing. */
  get suspension(): DeviceSuspension | null {
    return this.#suspension
  }

  suspend(suspension: DeviceSuspension | null): void {
    this.#suspension = suspension
  }

  /** @param instanceId in lower case */
  get(instanceId: string): PolicyInForce | undefined {
    return this.#policies.get(instanceId)
  }

  all(): Iterable<PolicyInForce> {
    return this.#policies.values()
  }

  put(policy: PolicyInForce): void {
    this.#policies.set(policy.document.instanceId.toLowerCase(), policy)
  }

  /**
   * The cloud's newest revisions at a time that it signed. It may name one that is still to be fetched: what was confirmed
   * of the one in force stands, and no longer grows.
   */
  confirm({ time, policies }: Confirmation): void {
    for (const { instanceId, revision } of policies) {
      const key = instanceId.toLowerCase()
      const known = this.#confirmedAt.get(key) ?? new Map<number, number>()
      const inForce = this.#policies.get(key)?.document.revision
      for (const other of known.keys()) if (other !== inForce && other !== revision) known.delete(other)
      known.set(revision, Math.max(time, known.get(revision) ?? 0))
      this.#confirmedAt.set(key, known)
    }
  }

  /** Until when a policy may be used, POSIX ms. */
  usableUntil({ document }: PolicyInForce): number {
    const heardAt = this.#confirmedAt.get(document.instanceId.toLowerCase())?.get(document.revision) ?? 0
    return Math.max(document.issuedAt, heardAt) + document.usableForMs
  }

  /** By the later end of the clock where there is one. */
  isStale(policy: PolicyInForce, { earliest, latest }: ClockReading): boolean {
    return (latest ?? earliest) > this.usableUntil(policy)
  }
}
