import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test, vi } from 'vitest'
import { RemoteSite } from './remote-site.ts'

test('leaves no process and no file of a device that is never ready', { timeout: 60_000 }, async () => {
  const around = await mkdtemp(join(tmpdir(), 'tallygate-around-'))
  vi.stubEnv('TMPDIR', around)
  try {
    const giveUp = new AbortController()
    const isReady = (): boolean => {
      giveUp.abort()
      return false
    }
    await expect(RemoteSite.open(isReady, giveUp.signal)).rejects.toThrow('aborted')
    expect(await readdir(around)).toEqual([])
    expect(process.getActiveResourcesInfo()).not.toContain('ProcessWrap')
  } finally {
    vi.unstubAllEnvs()
    await rm(around, { recursive: true, force: true })
  }
})
