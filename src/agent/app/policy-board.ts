/**
 * The rules in force, one policy per instance, as the access path reads them. A policy is swapped as a whole; it goes on
 * being usable for as long as its document says from the last time at which the cloud signed that it is still the newest.
 */
import type { CompiledPolicy } from '../../core/compile.ts'
import type { ClockReading } from '../../core/decision.ts'
import type { PolicyDocument } from '../../protocol/edge/policy-document.ts'
import type { Confirmation } from './journal.ts'

/** A policy in force: verified, complete, durable. */
export interface PolicyInForce {
  readonly document: PolicyDocument
  readonly compiled: CompiledPolicy
}

export class PolicyBoard {
  readonly #policies = new Map<string, PolicyInForce>()
  readonly #confirmedAt = new Map<string, { readonly revision: number; readonly at: number }>()

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

  /** The cloud's newest revisions at a time that it signed; older news than what is known changes nothing. */
  confirm({ time, policies }: Confirmation): void {
    for (const { instanceId, revision } of policies) {
      const known = this.#confirmedAt.get(instanceId)
      if (known === undefined || known.revision < revision || known.at < time) {
        this.#confirmedAt.set(instanceId, { revision, at: time })
      }
    }
  }

  /** Until when a policy may be used, POSIX ms. */
  usableUntil({ document }: PolicyInForce): number {
    const confirmed = this.#confirmedAt.get(document.instanceId)
    const heardAt = confirmed?.revision === document.revision ? confirmed.at : 0
    return Math.max(document.issuedAt, heardAt) + document.usableForMs
  }

  /** By the later end of the clock where there is one. */
  isStale(policy: PolicyInForce, { earliest, latest }: ClockReading): boolean {
    return (latest ?? earliest) > this.usableUntil(policy)
  }
}
