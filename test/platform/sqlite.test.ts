import { open } from 'node:fs/promises'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { expect, test } from 'vitest'
import { integrityOf } from '../../src/platform/sqlite.ts'
import { temporaryDirectory } from '../agent/harness.ts'

test('finds damage, and describes it in one line', async () => {
  const path = join(temporaryDirectory(), 'any.db')
  const sound = new Database(path)
  sound.exec(`CREATE TABLE t (x); INSERT INTO t VALUES ('one')`)
  expect(integrityOf(sound, 'integrity_check')).toBe('ok')
  sound.close()

  const file = await open(path, 'r+')
  await file.write(Buffer.alloc(100, 0xff), 0, 100, 4096)
  await file.close()
  const damaged = new Database(path, { readonly: true })
  expect(integrityOf(damaged, 'quick_check')).toMatch(/^Tree 2 page 2: .+$/)
  damaged.close()
})
