/** What the operator of the twin decides about devices. */

/** Attaches are counted over this time, ms. */
export const ATTACH_WINDOW_MS = 60 * 60_000

export interface EdgeTerms {
  /** How long a device may spend what it holds without hearing from the twin, ms. */
  readonly grantLifetimeMs: number
  /** How long a grant should last without contact, ms; a device asks for its burn rate times this. */
  readonly grantHorizonMs: number
  /** How long a device may decide by a policy without hearing from the twin, ms. */
  readonly policyUsableMs: number
  /** A device should sync at least so often, ms. */
  readonly syncEveryMs: number
  /** How long a device keeps what is acknowledged, for a twin that is restored from a backup, ms. */
  readonly receiptMarginMs: number
  /** How often a device may attach within {@link ATTACH_WINDOW_MS}. */
  readonly attachesMax: number
  /** Length of the intervals for which sessions are charged, ms; null: as the tenant's configuration says. */
  readonly sessionIntervalMs: number | null
}

/** Where the twin is reached from outside. */
export interface Addresses {
  /** `https://host/prefix/edge/api/v1` */
  readonly edge: string
  /** `https://host/prefix/api` */
  readonly service: string
  /** `mqtt://` or `mqtts://`; null when there is no push. */
  readonly push: string | null
}
