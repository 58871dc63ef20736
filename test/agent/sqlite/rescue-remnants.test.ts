// What a damaged journal owed of earlier incarnations, and of blocks that were open in it.
import { describe, expect, it } from 'vitest'
import { STAMP, entry, journalIn } from '../harness.ts'
import { A, damage, deviceWithBacklog } from './damaged.ts'

async function rescued(directory: string) {
  const journal = await journalIn(directory)
  const { remnants, rescues } = await journal.read()
  await journal.close()
  const counts = (rescues ?? []).map(({ salvagedEntries, lostEntries }) => ({ salvagedEntries, lostEntries }))
  return { remnants, counts }
}

describe('remnants of a damaged journal', () => {
  it('are salvaged, though no segment holds any of them', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.fence()
    await journal.attach(9)
    await journal.append(
      [1, 2, 3, 4, 5].map((n) => entry(n, [])),
      STAMP,
    )
    await journal.close()
    damage(path)
    expect(await rescued(directory)).toEqual({ remnants: 45, counts: [{ salvagedEntries: 45, lostEntries: 0 }] })
  })

  it('are salvaged again when the journal that a rescue made is damaged too', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.close()
    for (let times = 0; times < 3; times += 1) {
      damage(path)
      // Each rescue is one of its own journal.
      expect(await rescued(directory)).toEqual({ remnants: 40, counts: [{ salvagedEntries: 40, lostEntries: 0 }] })
    }
  })

  it('are no whole account while a block is open: what was used of it is not known', async () => {
    const { directory, journal, path } = await deviceWithBacklog()
    await journal.appendReserved([], [{ account: A, usedUpTo: 5_000n }], STAMP, false)
    await journal.close()
    damage(path)
    expect(await rescued(directory)).toEqual({ remnants: 40, counts: [{ salvagedEntries: 40, lostEntries: null }] })
  })
})
