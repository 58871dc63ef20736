import { expect, it } from 'vitest'
import type { ArchivePlace } from '../../../../src/cloud/usage/archive/place.ts'

/** What each kind of place does. */
export function placeSuite(open: () => ArchivePlace): void {
  it('returns what was written, and lists it', async () => {
    const place = open()
    expect(await place.list()).toEqual([])
    expect(await place.get('usage-1.zst')).toBeNull()
    const body = Buffer.from(Array.from({ length: 70_000 }, (_, n) => (n * 7) % 256))
    await place.put('usage-1.zst', body)
    await place.put('usage-2.json', Buffer.from('old'))
    await place.put('usage-2.json', Buffer.from('{}'))
    expect((await place.get('usage-1.zst'))!.equals(body)).toBe(true)
    expect((await place.get('usage-2.json'))!.toString()).toBe('{}')
    expect((await place.list()).toSorted()).toEqual(['usage-1.zst', 'usage-2.json'])
  })
}

/** @returns the message */
export async function failed(work: Promise<unknown>): Promise<string> {
  const error: unknown = await work.then(
    () => 'no error',
    (reason: unknown) => reason,
  )
  expect(error).toMatchObject({ code: 'ARCHIVE_UNAVAILABLE' })
  return (error as Error).message
}
