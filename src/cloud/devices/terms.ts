/** Settings about devices. */

/** Window of the attach limit, ms. */
export const ATTACH_WINDOW_MS = 60 * 60_000

export interface EdgeTerms {
  /** How long a device may spend grants without contact, ms. */
  readonly grantLifetimeMs: number
  /** How long a grant should last without contact, ms; devices request their burn rate times this. */
  readonly grantHorizonMs: number
  /** How long a device may decide by a policy without contact, ms. */
  readonly policyUsableMs: number
  /** Longest interval between syncs, ms. */
  readonly syncEveryMs: number
  /** How long a device keeps acknowledged entries, for a cloud restored from a backup, ms. */
  readonly receiptMarginMs: number
  /** Attaches of a device within {@link ATTACH_WINDOW_MS}. */
  readonly attachesMax: number
  /** Charge interval of sessions, ms; null: the tenant's configuration. */
  readonly sessionIntervalMs: number | null
}

/** Public addresses of the cloud. */
export interface Addresses {
  /** `https://host/prefix/edge/api/v1` */
  readonly edge: string
  /** `https://host/prefix/api` */
  readonly service: string
  /** `mqtt://` or `mqtts://`; null: no push. */
  readonly push: string | null
}
