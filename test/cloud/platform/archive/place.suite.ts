import { expect, it } from 'vitest'
import type { ArchivePlace } from '../../../../src/cloud/usage/archive/place.ts'

/** What each kind of place does. */
export function placeSuite(open: () => ArchivePlace): void {
  it('returns and lists written files', async () => {
    const place = open()
    expect(await place.list()).toEqual([])
    expect(await place.get('usage-1.zst')).toBeNull()
    const body = Buffer.from(Array.from({ length: 70_000 }, (_, n) => (n * 7) % 256))
    expect(await place.create('usage-1.zst', body)).toBe(true)
    expect(await place.create('usage-2.json', Buffer.from('{}'))).toBe(true)
    expect((await place.get('usage-1.zst'))!.equals(body)).toBe(true)
    expect((await place.get('usage-2.json'))!.toString()).toBe('{}')
    expect((await place.list()).toSorted()).toEqual(['usage-1.zst', 'usage-2.json'])
  })

  it('never changes a file', async () => {
    const place = open()
    expect(await place.create('usage-1.json', Buffer.from('first'))).toBe(true)
    expect(await place.create('usage-1.json', Buffer.from('second'))).toBe(false)
    expect((await place.get('usage-1.json'))!.toString()).toBe('first')
    expect((await place.list()).toSorted()).toEqual(['usage-1.json'])
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
