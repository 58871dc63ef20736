/** Who is at the other end of a connection, by the word of the kernel: what the process was when it connected. */

export interface Caller {
  readonly uid: number
  /** The effective group and the supplementary ones. */
  readonly gids: readonly number[]
  readonly pid: number
}

/** What a caller is called in ledgers of callers and as the owner of a session. */
export function callerName({ uid }: Pick<Caller, 'uid'>): string {
  return `uid:${uid}`
}
