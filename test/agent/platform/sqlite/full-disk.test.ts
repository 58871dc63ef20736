// What an agent writes while its disk is full.
import { randomBytes } from 'node:crypto'
import { readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { fillDisk, smallDisk } from '../../../support/mounts.ts'
import { SEAL, STAMP, attach, entry, journalIn } from '../../harness.ts'
import { A } from './damaged.ts'

/** By this process, to files. */
function bytesWritten(): number {
  return Number(/^wchar: (\d+)$/m.exec(readFileSync('/proc/self/io', 'utf8'))?.[1])
}

const large = (n: number) => {
  const made = entry(n, [{ account: A, amount: 1n }])
  return { ...made, body: made.body.replace('}', `,"fill":"${randomBytes(3_000).toString('base64')}"}`) }
}

it.for(['is missing', 'is used up'])(
  'writes little while a full disk refuses entries, if its reserve %s',
  async (how, { skip }) => {
    const directory = smallDisk(skip, '16m')
    const journal = await journalIn(directory)
    await attach(journal, { [A]: 1_000_000n })
    let n = 1
    for (; n < 300; n += 1) await journal.append([large(n)], STAMP)
    if (how === 'is missing') rmSync(join(directory, 'journal.db-disk-reserve'))
    fillDisk(directory)
    for (let refused = 0; refused < 3; n += 1) {
      await journal.append([large(n)], STAMP).catch((error: unknown) => {
        expect(error).toMatchObject({ code: 'NOT_RECORDED' })
        refused += 1
        n -= 1
      })
    }
    if (how === 'is used up') await expect(journal.seal(SEAL)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    const before = bytesWritten()
    for (let times = 0; times < 100; times += 1) {
      await expect(journal.append([large(n)], STAMP)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    }
    // 140 kB each if a checkpoint wrote what has space.
    expect(bytesWritten() - before).toBeLessThan(1_000_000)
  },
)
