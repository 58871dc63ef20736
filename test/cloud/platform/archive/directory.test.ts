import { randomUUID } from 'node:crypto'
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
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
    await archiveDirectory(path).create('a', Buffer.from('x'))
    expect(statSync(path).mode & 0o777).toBe(0o700)
    expect(statSync(join(path, 'a')).mode & 0o777).toBe(0o600)
    expect(readdirSync(path)).toEqual(['a'])
  })

  it('that does not exist, is no directory or is full is named', async () => {
    const file = join(folder, 'file')
    writeFileSync(file, '')
    expect(await failed(archiveDirectory(file).list())).toContain(file)
    expect(await failed(archiveDirectory(join(file, 'below')).create('a', Buffer.from('x')))).toContain(
      'below/a cannot be written',
    )
    const full = join(folder, 'full')
    await archiveDirectory(full).create('other', Buffer.from('x'))
    const cut = (function* () {
      yield 'some text'
      throw new Error('ENOSPC: no space left on device')
    })() as unknown as Buffer
    expect(await failed(archiveDirectory(full).create('a', cut))).toContain('ENOSPC')
    expect(readdirSync(full)).toEqual(['other'])
  })

  it('lets one of several processes create a file', async () => {
    const place = archiveDirectory(join(folder, 'shared'))
    const created = await Promise.all(Array.from({ length: 8 }, (_, n) => place.create('a', Buffer.from(String(n)))))
    expect(created.filter(Boolean)).toHaveLength(1)
    expect((await place.get('a'))!.toString()).toBe(String(created.indexOf(true)))
    expect(await place.list()).toEqual(['a'])
  })

  it('may be on a file system without hard links', async () => {
    const path = join(folder, 'without')
    const noLinks = () => Promise.reject(Object.assign(new Error('not permitted'), { code: 'EPERM' }))
    const place = archiveDirectory(path, noLinks)
    expect(await place.create('a', Buffer.from('first'))).toBe(true)
    expect(await place.create('a', Buffer.from('second'))).toBe(false)
    expect((await place.get('a'))!.toString()).toBe('first')
    expect(readdirSync(path)).toEqual(['a'])
  })
})
