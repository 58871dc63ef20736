import { Disk, MemoryJournal } from '../../sync/memory-journal.ts'
import { makeCloudKey } from '../../sync/fake-cloud.ts'
import { journalOnThread, temporaryDirectory } from '../../harness.ts'
import { journalContract } from './journal-contract.ts'

journalContract('SQLite', () => {
  const directory = temporaryDirectory()
  return {
    open: () => journalOnThread(directory),
    reopen: async (journal) => {
      await journal.close()
      return journalOnThread(directory)
    },
  }
})

journalContract('in memory', () => {
  const disk = new Disk()
  const open = async (): Promise<MemoryJournal> => new MemoryJournal(disk, (await makeCloudKey()).signer)
  return { open, reopen: open }
})
