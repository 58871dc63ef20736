/**
 * Reads `If-Match` or `If-None-Match`. A proxy that compresses responses weakens their ETags, which still name the revision.
 * @returns whether the header names an ETag; null: the header is malformed
 */
export function parseTags(header: string): ((etag: string) => boolean) | null {
  if (header.trim() === '*') return () => true
  const tags = header.split(',').map((tag) => tag.trim().replace(/^W\//, ''))
  return tags.every((tag) => /^"[^"]*"$/.test(tag)) ? (etag) => tags.includes(etag) : null
}
