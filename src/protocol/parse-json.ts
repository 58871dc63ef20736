/** JSON of somebody else, read for a schema to judge: it throws for nothing. */

/** Undefined for what is no JSON: no schema of a document accepts it. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
