/** Paging by position: `next` is where the next page begins, 0 when there is none. */
export async function pageOf<T>(
  offset: number,
  size: number,
  list: (offset: number, limit: number) => Promise<readonly T[]>,
): Promise<{ readonly shown: readonly T[]; readonly next: number }> {
  const rows = await list(offset, size + 1)
  return { shown: rows.slice(0, size), next: rows.length > size ? offset + size : 0 }
}
