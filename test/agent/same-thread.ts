// A journal without its worker thread: calls are answered in later turns of the event loop. Starting a thread takes longer
// than most tests of the ledger.
import { JournalHandler } from '../../src/agent/platform/sqlite/journal-handler.ts'
import type { StartThread } from '../../src/agent/platform/sqlite/journal.ts'
import { openOrSalvage } from '../../src/agent/platform/sqlite/salvage-journal.ts'
import { DiskReserve } from '../../src/agent/platform/sqlite/disk-reserve.ts'
import { PAGE_BYTES } from '../../src/agent/platform/sqlite/open-database.ts'
import { BEGIN } from './sync/fake-time.ts'

export const sameThread: StartThread = (options, events) => {
  const { path, limits, later } = options
  const diskReservePath = `${path}-disk-reserve`
  const handler = new JournalHandler({
    path,
    open: () => openOrSalvage({ ...options, later: [...later, diskReservePath] }, () => BEGIN),
    diskReserve: new DiskReserve(diskReservePath, limits.diskReservePages * PAGE_BYTES),
  })
  return {
    post: (call) => {
      // Copied as between threads.
      const sent = structuredClone(call)
      setImmediate(() => {
        events.onAnswer(structuredClone(handler.answerTo(sent)))
        if (sent.method === 'close') events.onEnd()
        else handler.answered()
      })
    },
    terminate: () => setImmediate(() => events.onEnd()),
  }
}
