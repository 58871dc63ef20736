/**
 * Texts in which each id (UUID) that comes again is one byte. Ids are most of what an entry repeats, and a general compression of
 * so short a text takes longer than its commit.
 */
const ID = /[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}/g
const ID_OR_CODE = new RegExp(`${ID.source}|[\\x0e-\\x1f]`, 'g')

/** Codes of the first ids. JSON texts never contain these characters. */
const FIRST_CODE = 0x0e
const CODES = 0x20 - FIRST_CODE

/** @param text UTF-8 without characters from U+000E to U+001F, such as lines of JSON */
export function shortenIds(text: Buffer): Buffer {
  const codes = new Map<string, string>()
  const short = text.toString('latin1').replace(ID, (id) => {
    const code = codes.get(id)
    if (code !== undefined) return code
    if (codes.size < CODES) codes.set(id, String.fromCharCode(FIRST_CODE + codes.size))
    return id
  })
  return Buffer.from(short, 'latin1')
}

/** What {@link shortenIds} was given. @throws Error if an id is missing */
export function restoreIds(short: Buffer): Buffer {
  const ids: string[] = []
  const text = short.toString('latin1').replace(ID_OR_CODE, (found) => {
    if (found.length > 1) {
      if (ids.length < CODES && !ids.includes(found)) ids.push(found)
      return found
    }
    const id = ids[found.charCodeAt(0) - FIRST_CODE]
    if (id === undefined) throw new Error('damaged: a short id stands for nothing')
    return id
  })
  return Buffer.from(text, 'latin1')
}
