/** The process at the other end of a connection, as the kernel recorded it when it connected. */

export interface Caller {
  readonly uid: number
  /** The effective group and the supplementary ones. */
  readonly gids: readonly number[]
  readonly pid: number
}

/** The caller's name in quotas and as the owner of a session. */
export function callerName({ uid }: Pick<Caller, 'uid'>): string {
  return `uid:${uid}`
}
