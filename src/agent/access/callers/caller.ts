/** The process at the other end of a connection, as the kernel recorded it. */

export interface Caller {
  readonly uid: number
  /** Includes supplementary groups. */
  readonly gids: readonly number[]
  readonly pid: number
}

export function callerName({ uid }: Pick<Caller, 'uid'>): string {
  return `uid:${uid}`
}
