// A backup whose destination is the database that it is made of.
import { linkSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { refuseItself } from '../../src/cli/refuse-itself.ts'

function database(): { directory: string; path: string } {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-itself-'))
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }))
  const path = join(directory, 'journal.db')
  writeFileSync(path, 'ledger')
  return { directory, path }
}

describe('the destination of a backup', () => {
  it('is refused when it is the database or a file that belongs to it, under whatever name', () => {
    const { directory, path } = database()
    symlinkSync(path, join(directory, 'link.db'))
    linkSync(path, join(directory, 'hard.db'))
    symlinkSync(directory, join(directory, 'folder'))
    const names = [
      ...['', '-wal', '-shm', '-disk-reserve'].map((suffix) => `${path}${suffix}`),
      ...[join(directory, 'link.db'), join(directory, 'hard.db'), join(directory, 'folder', 'journal.db')],
      ...[join(directory, 'folder', 'journal.db-wal'), relative(process.cwd(), path)],
    ]
    for (const name of names) {
      expect(() => refuseItself(path, name), name).toThrow(expect.objectContaining({ code: 'USAGE' }))
    }
  })

  it('is compared with no file that this user cannot look at: the copy reports the reason', () => {
    const { directory } = database()
    const loop = join(directory, 'loop')
    symlinkSync(loop, loop)
    expect(() => refuseItself(join(loop, 'journal.db'), join(directory, 'new.db'))).not.toThrow()
  })

  it('may be any other file, there or not', () => {
    const { directory, path } = database()
    writeFileSync(join(directory, 'old.db'), 'backup')
    for (const name of ['old.db', 'new.db', 'none/new.db']) {
      expect(() => refuseItself(path, join(directory, name)), name).not.toThrow()
    }
  })
})
