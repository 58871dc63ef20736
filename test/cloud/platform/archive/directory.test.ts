import { randomUUID } from 'node:crypto'
import { mkdtempSync, readdirSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { archiveDirectory } from '../../../../src/cloud/platform/archive/directory.ts'
import { failed, placeSuite } from './place.suite.ts'

const folder = mkdtempSync(join(tmpdir(), 'tallygate-places-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe('a directory', () => {
  placeSuite(() => archiveDirectory(join(folder, randomUUID(), 'below')))

  it('is for its owner only, and keeps no partial file', async () => {
    const path = join(folder, 'own')
    await archiveDirectory(path).put('a', Buffer.from('x'))
    expect(statSync(path).mode & 0o777).toBe(0o700)
    expect(statSync(join(path, 'a')).mode & 0o777).toBe(0o600)
    expect(readdirSync(path)).toEqual(['a'])
  })

  it('that is none, or is full, is named', async () => {
    const file = join(folder, 'file')
    writeFileSync(file, '')
    expect(await failed(archiveDirectory(file).list())).toContain(file)
    expect(await failed(archiveDirectory(join(file, 'below')).put('a', Buffer.from('x')))).toContain(
      'below/a cannot be written',
    )
    // The device that is always full.
    const full = join(folder, 'full')
    await archiveDirectory(full).put('other', Buffer.from('x'))
    symlinkSync('/dev/full', join(full, 'a.partial'))
    expect(await failed(archiveDirectory(full).put('a', Buffer.from('x')))).toContain('ENOSPC')
    expect(readdirSync(full)).toEqual(['other'])
  })
})
