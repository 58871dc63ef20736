/** A policy is replaced as a whole, and expires a time after the cloud last signed that it is the newest. */
import type { CompiledPolicy } from '../../core/rules/compile.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import type { PolicyDocument } from '../../protocol/edge/policy-document.ts'

/** Verified, complete and durable. */
export interface PolicyInForce {
  readonly document: PolicyDocument
  readonly compiled: CompiledPolicy
}

/** The newest policies, as signed with an acknowledgement. */
export interface Confirmation {
  readonly time: number
  /** Newest revision per instance; confirms a stored policy of that revision. */
  readonly policies: readonly { readonly instanceId: string; readonly revision: number }[]
}

export class ActivePolicies {
  readonly #policies = new Map<string, PolicyInForce>()
  readonly #confirmedAt = new Map<string, Map<number, number>>()

  /** The cloud refuses the key of this device, and with it every top-up. */
  isDeviceRefused = false

  suspension: DeviceSuspension | null = null

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

  /** Call when the journal has it. A newer revision than the one in force stops extending its expiry. */
  confirm({ time, policies }: Confirmation): void {
    for (const { instanceId, revision } of policies) {
      const key = instanceId.toLowerCase()
      const known = this.#confirmedAt.get(key) ?? new Map<number, number>()
      const inForce = this.#policies.get(key)?.document.revision
      for (const other of known.keys()) if (other !== inForce && other !== revision) known.delete(other)
      known.set(revision, time)
      this.#confirmedAt.set(key, known)
    }
  }

  /** From the last confirmation, not the latest: the cloud's clock may have been ahead for a time. */
  usableUntil({ document }: PolicyInForce): number {
    const confirmedAt = this.#confirmedAt.get(document.instanceId.toLowerCase())?.get(document.revision)
    return (confirmedAt ?? document.issuedAt) + document.usableForMs
  }

  /** Negative: the rules are too old. */
  remainingMs(policy: PolicyInForce, { earliest, latest }: ClockReading): number {
    return this.usableUntil(policy) - (latest ?? earliest)
  }

  isStale(policy: PolicyInForce, reading: ClockReading): boolean {
    return this.remainingMs(policy, reading) < 0
  }
}
