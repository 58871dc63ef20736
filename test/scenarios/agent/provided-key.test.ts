// The file of a device's key at a real twin: one that is provided, as by a service manager, and one that is missing.
import { generateKeyPairSync } from 'node:crypto'
import { existsSync, renameSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { openKeyFile } from '../../../src/agent/platform/key-file/key-file.ts'
import type { Agent } from '../../../src/agent/compose.ts'
import { HttpClient } from '../../../src/client/http.ts'
import { AGENT_ROTATE_KEY_PATH, keyRotation } from '../../../src/protocol/local/rotate-key.ts'
import { ALWAYS, openTwin } from '../../cloud/harness.ts'
import { temporaryDirectory } from '../../agent/harness.ts'
import { startAgent } from './start-agent.ts'

test('it is replaced by another one that is provided, and by nothing else; neither file is touched', async () => {
  const twin = await openTwin()
  onTestFinished(() => twin[Symbol.asyncDispose]())
  twin.followMachine()
  const enrollmentToken = await twin.enrollmentToken(await twin.shop(ALWAYS))
  const directory = temporaryDirectory()
  const [first, second] = [join(directory, 'first.pem'), join(directory, 'second.pem')]
  for (const path of [first, second]) {
    const { privateKey } = generateKeyPairSync('ed25519')
    writeFileSync(path, privateKey.export({ format: 'pem', type: 'pkcs8' }), { mode: 0o440 })
  }
  const idOf = async (path: string): Promise<string> => (await openKeyFile({ path, create: false })).signer.keyId
  const [firstId, secondId] = [await idOf(first), await idOf(second)]
  const start = async (keys: Readonly<Record<string, string>>): Promise<Agent> => {
    const agent = await startAgent({ directory, enrollmentToken, flags: keys })
    // The cloud's answer to the enrollment connects it, before it is recorded.
    const attached = { connected: true, epoch: 1 }
    await expect.poll(() => agent.link.status(), { timeout: 10_000, interval: 20 }).toMatchObject(attached)
    return agent
  }
  const order = async ({ socketPath }: Agent) => {
    using client = new HttpClient({ address: `unix:${socketPath}`, unreachable: 'AGENT_UNREACHABLE' })
    return await client.json({ method: 'POST', path: AGENT_ROTATE_KEY_PATH }, keyRotation)
  }
  const keyOf = (agent: Agent): string => agent.link.status().key.id

  const alone = await start({ 'device-key-file': first })
  await expect(order(alone)).rejects.toMatchObject({ code: 'DEVICE_KEY_PROVIDED' })
  expect(alone.link.status()).toMatchObject({ key: { id: firstId }, connected: true })
  await alone.stop()

  const both = { 'device-key-file': first, 'device-next-key-file': second }
  const agent = await start(both)
  expect(keyOf(agent)).toBe(firstId)
  expect(await order(agent)).toEqual({ key: firstId, next: secondId })
  await expect.poll(() => keyOf(agent), { timeout: 10_000, interval: 20 }).toBe(secondId)
  await agent.stop()

  // The ledger says which of the two it is, until the operator has put the second in the place of the first.
  const again = await start(both)
  expect(keyOf(again)).toBe(secondId)
  await again.stop()
  const last = await start({ 'device-key-file': second })
  expect(last.link.status()).toMatchObject({ key: { id: secondId }, conditions: [] })
  expect([await idOf(first), await idOf(second)]).toEqual([firstId, secondId])
  expect(statSync(first).mode & 0o777).toBe(0o440)
})

test('a device whose key is missing does not start, and delivers when it is back', async () => {
  const twin = await openTwin()
  onTestFinished(() => twin[Symbol.asyncDispose]())
  twin.followMachine()
  const enrollmentToken = await twin.enrollmentToken(await twin.shop(ALWAYS))
  const directory = temporaryDirectory()
  const start = () => startAgent({ directory, enrollmentToken })
  const first = await start()
  await expect.poll(() => first.link.status().connected, { timeout: 10_000, interval: 20 }).toBe(true)
  await first.stop()

  const [path, away] = [join(directory, 'state', 'device.key'), join(directory, 'away.key')]
  renameSync(path, away)
  await expect(start()).rejects.toMatchObject({ code: 'DEVICE_KEY_UNUSABLE' })
  expect(existsSync(path)).toBe(false)
  renameSync(away, path)
  const again = await start()
  await expect.poll(() => again.link.status().connected, { timeout: 10_000, interval: 20 }).toBe(true)
  expect(again.link.status().conditions).toEqual([])
})
