import { Disk, MemoryJournal } from '../../sync/memory-journal.ts'
import { makeCloudKey } from '../../sync/fake-cloud.ts'
import { journalIn, temporaryDirectory } from '../../harness.ts'
import { journalContract } from './journal-contract.ts'

journalContract('SQLite', () => {
  const directory = temporaryDirectory()
  return {
    open: () => journalIn(directory),
    reopen: async (journal) => {
      await journal.close()
      return journalIn(directory)
    },
  }
})

journalContract('in memory', () => {
  const disk = new Disk()
  const open = async (): Promise<MemoryJournal> => new MemoryJournal(disk, (await makeCloudKey()).signer)
  return { open, reopen: open }
})
