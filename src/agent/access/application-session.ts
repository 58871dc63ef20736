/**
 * Names an application session inside the agent: the caller and the name that it chose. Names contain no space, so a
 * caller cannot choose the name of another caller's session.
 */

/** @param owner the caller, without spaces; null where callers are not distinguished */
export function applicationSession(owner: string | null, name: string): string {
  return owner === null ? name : `${owner} ${name}`
}

/** The caller that owns an application session; '' where callers are not distinguished. */
export function ownerOf(session: string): string {
  return session.slice(0, Math.max(0, session.indexOf(' ')))
}
