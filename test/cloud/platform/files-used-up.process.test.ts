// A cloud without a file descriptor left serves the connections that it has.
import { execFileSync } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { Agent, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { programForTest } from '../../support/program.ts'
import { HOUR } from '../harness.ts'
import { TwinProcess } from '../twin-process.ts'

test('a cloud that has used up its file descriptors answers on connections that are open', async (context) => {
  const prlimit = programForTest(context, 'prlimit')
  const folder = await mkdtemp(join(tmpdir(), 'tallygate-files-'))
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  try {
    await using twin = await TwinProcess.start(['--store-path', join(folder, 'cloud')])
    const privateKey = await readFile(join(folder, 'cloud', 'administration-key.pem'), 'utf8')
    const token = await makeAccessToken({
      ...{ kind: 'ADMIN', privateKey, instanceIds: [], issuer: 'tests', now: Date.now(), lifetimeMs: HOUR },
    })
    // It compares the clock with the time since boot.
    const sweeps = () =>
      new Promise<number | undefined>((resolve, reject) => {
        const headers = { authorization: `Bearer ${token}` }
        request(`${twin.address}/edge/api/v1/sweeps`, { agent, headers }, (response) => {
          response.resume().on('end', () => resolve(response.statusCode))
        })
          .on('error', reject)
          .end()
      })
    expect(await sweeps()).toBe(200)
    execFileSync(prlimit, ['--pid', String(twin.pid), '--nofile=1:'])
    expect(await sweeps()).toBe(200)
    expect(twin.complaints).toEqual([])
  } finally {
    agent.destroy()
    await rm(folder, { recursive: true, force: true })
  }
})
