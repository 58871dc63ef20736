/** Names contain no space, so a caller cannot choose the name of another caller's application session. */

/** @param owner null where callers are not distinguished */
export function applicationSession(owner: string | null, name: string): string {
  return owner === null ? name : `${owner} ${name}`
}

/** The owner; '' where callers are not distinguished. */
export function ownerOf(session: string): string {
  return session.slice(0, Math.max(0, session.indexOf(' ')))
}
