/**
 * What an application session is called inside the agent: the caller and the name that it chose. A name has no space in
 * it, so no caller can choose one that would count as another caller's.
 */

/** @param owner the caller, without spaces; null where callers are not told apart */
export function applicationSession(owner: string | null, name: string): string {
  return owner === null ? name : `${owner} ${name}`
}

/** The caller that an application session belongs to; '' where callers are not told apart. */
export function ownerOf(session: string): string {
  return session.slice(0, Math.max(0, session.indexOf(' ')))
}
