/**
 * Ids in groups that differ in their last two digits only: where entries are compressed, an id takes two bytes instead
 * of 17. An id can be guessed from another one, but gives no right.
 */
const GROUP_IDS = 256

const LAST_DIGITS = Array.from({ length: GROUP_IDS }, (_, index) => index.toString(16).padStart(2, '0'))

/** @param newId a random UUID: no two processes share one, so each begins another group */
export function correlationIds(newId: () => string): () => string {
  let start = ''
  let used = GROUP_IDS
  return () => {
    if (used === GROUP_IDS) {
      start = newId().slice(0, -2)
      used = 0
    }
    const id = `${start}${LAST_DIGITS[used]}`
    used += 1
    return id
  }
}
