// Keys that are changed while twin and device work, as an operator changes them.
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Agent } from '../../src/agent/compose.ts'
import {
  chainPath,
  forgetSigningKey,
  openKeyring,
  rotateSigningKey,
} from '../../src/cloud/platform/key-file/keyring-file.ts'
import type { AgentStatus } from '../../src/protocol/local/status.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { Application } from '../scenarios/agent/site.ts'
import { startAgent } from '../scenarios/agent/start-agent.ts'
import { ALWAYS, type Twin, newKeyPair, openTwin, pick } from '../cloud/harness.ts'
import { PostgresSchema } from '../support/postgres-schema.ts'
import { postgres } from '../support/servers.ts'
import { tallygate } from './outside.ts'

const until = (agent: Agent, isSo: (status: AgentStatus) => boolean): Promise<AgentStatus> =>
  new Application(agent).until(isSo)

interface Site {
  readonly twin: Twin
  readonly keyFile: string
  readonly instanceId: string
  start(): Promise<Agent>
  reload(): void
  /** The device has the newest rules, signed by this key. */
  upToDate(agent: Agent): Promise<void>
}

async function openSite(db: string | null): Promise<Site> {
  const twin = await openTwin((settings) => ({ ...settings, db }))
  onTestFinished(() => twin[Symbol.asyncDispose]())
  twin.followMachine()
  const instanceId = await twin.shop(ALWAYS)
  const enrollmentToken = await twin.enrollmentToken(instanceId)
  const directory = temporaryDirectory()
  const newest = async (): Promise<number> => {
    const revision = await twin.call('GET', `/edge/api/v1/devices`)
    return Number(pick(revision.body, 'devices', 0, 'policies', 0, 'newest'))
  }
  return {
    twin,
    keyFile: join(twin.settings.store.path, 'signing-key.pem'),
    instanceId,
    async start() {
      const flags = { 'sync-interval': '1s', 'sync-backoff-max': '1s' }
      const agent = await startAgent({ directory, enrollmentToken, flags })
      await until(agent, ({ connected, accounts }) => connected && accounts.length > 0)
      return agent
    },
    reload: () => twin.cloud.reload(() => twin.settings),
    async upToDate(agent) {
      const wanted = await newest()
      await until(agent, ({ connected, policies, conditions }) => {
        return connected && conditions.length === 0 && policies.every(({ applied }) => applied >= wanted)
      })
    },
  }
}

const signerOf = async (site: Site): Promise<string> => (await openKeyring(site.keyFile)).signer.keyId

/** With the key that the twin really signs by. */
async function signsWith(site: Site, keyId: string): Promise<void> {
  await expect
    .poll(async () => {
      const [header = ''] = (await site.twin.enrollmentToken(site.instanceId)).split('.')
      return (JSON.parse(Buffer.from(header, 'base64url').toString()) as { kid: string }).kid
    })
    .toBe(keyId)
}

function suite(name: string, db: () => Promise<string | null>): void {
  describe(`the signing key, on ${name}`, { timeout: 90_000 }, () => {
    it('changes under a device that works, and under one that is away, more than once', async () => {
      const site = await openSite(await db())
      const agent = await site.start()
      const first = await signerOf(site)

      const { from, to } = await rotateSigningKey(site.keyFile, Date.now())
      expect([from, to]).toEqual([first, await signerOf(site)])
      site.reload()
      await signsWith(site, to)
      await site.upToDate(agent)

      await agent.stop()
      const second = await rotateSigningKey(site.keyFile, Date.now())
      const third = await rotateSigningKey(site.keyFile, Date.now())
      site.reload()
      await signsWith(site, third.to)
      await forgetSigningKey(site.keyFile, first)
      await forgetSigningKey(site.keyFile, second.from)
      site.reload()

      const again = await site.start()
      await site.upToDate(again)
      // It believes what the rules say, and no more than that.
      await again.stop()
      const last = await site.start()
      expect((await new Application(last).status()).conditions).toEqual([])
    })

    it('is the same after a restart of the twin, whose store knew the one before', async () => {
      const site = await openSite(await db())
      const port = Number(new URL(site.twin.cloud.address).port)
      const agent = await site.start()
      await site.twin.stop()
      const { to } = await rotateSigningKey(site.keyFile, Date.now())
      await site.twin.start(({ http, ...rest }) => ({ ...rest, http: { ...http, port } }))
      await signsWith(site, to)
      await site.upToDate(agent)
    })
  })
}

suite('SQLite', async () => null)

describe('with PostgreSQL', () => {
  const server = postgres()
  suite('PostgreSQL', async () => {
    const schema = await PostgresSchema.create(server.url)
    onTestFinished(() => schema[Symbol.asyncDispose]())
    return schema.url
  })
})

describe('a change of the signing key that is cut off', () => {
  const place = async (): Promise<string> => {
    const path = join(temporaryDirectory(), 'signing-key.pem')
    await openKeyring(path)
    return path
  }

  it('after the next key was made continues with that one', async () => {
    const path = await place()
    const first = await openKeyring(path)
    const { to } = await rotateSigningKey(path, 1)
    // As it was before the introduction was written.
    const second = readFileSync(path)
    writeFileSync(`${path}.next`, second, { mode: 0o600 })
    rmSync(chainPath(path))
    const other = await place()
    renameSync(`${path}.next`, `${other}.next`)
    const resumed = await rotateSigningKey(other, 2)
    expect(resumed.to).toBe(to)
    expect(resumed.from).not.toBe(first.signer.keyId)
    expect(existsSync(`${other}.next`)).toBe(false)
  })

  it('after the introduction was written signs with the key from before, and introduces the next one once', async () => {
    const path = await place()
    const before = readFileSync(path)
    const first = await openKeyring(path)
    const { to } = await rotateSigningKey(path, 1)
    renameSync(path, `${path}.next`)
    writeFileSync(path, before, { mode: 0o600 })
    const between = await openKeyring(path)
    expect(between.signer.keyId).toBe(first.signer.keyId)
    expect(between.trusted.map(({ keyId }) => keyId)).toEqual([first.signer.keyId])
    expect(await rotateSigningKey(path, 2)).toEqual({ from: first.signer.keyId, to })
    const after = await openKeyring(path)
    expect(after.introductions).toHaveLength(1)
    expect(after.trusted.map(({ keyId }) => keyId)).toEqual([to, first.signer.keyId])
  })

  it('and a key that is in force, or unknown, cannot be forgotten', async () => {
    const path = await place()
    const { signer } = await openKeyring(path)
    for (const keyId of [signer.keyId, 'nobody']) {
      await expect(forgetSigningKey(path, keyId)).rejects.toMatchObject({ code: 'NOT_FOUND' })
    }
  })

  it('names the reason for which its introductions cannot be read', async () => {
    const path = await place()
    mkdirSync(chainPath(path))
    const message = `${chainPath(path)} cannot be read: it is a directory.`
    await expect(openKeyring(path)).rejects.toMatchObject({ code: 'KEY_UNUSABLE', message })
  })
})

describe('an administration key', () => {
  it('is changed without a pause: added, used, and the one from before deleted; the last one stays', async () => {
    const twin = await openTwin()
    onTestFinished(() => twin[Symbol.asyncDispose]())
    const first = twin.cloud.administrationKeyFile
    const next = join(twin.directory, 'next.pem')
    writeFileSync(next, newKeyPair().privatePem)
    const world = { now: () => twin.now, readText: (path: string) => readFileSync(path, 'utf8') }
    const keys = (...args: readonly string[]) => tallygate(['keys', ...args, '--url', twin.cloud.address], world)
    const idsBy = async (key: string) => {
      const { out } = await keys('list', '--json', '--admin-key', key)
      return out
        .trim()
        .split('\n')
        .map((line) => (JSON.parse(line) as { id: string }).id)
    }

    const [firstId = ''] = await idsBy(first)
    const added = await keys('set', next, '--admin-key', first)
    const nextId = added.out.trim()
    expect(added).toMatchObject({ code: 0, err: '' })
    expect(await idsBy(next)).toEqual([firstId, nextId])
    expect(await keys('delete', firstId, '--yes', '--admin-key', next)).toMatchObject({ code: 0, err: '' })
    expect(await idsBy(next)).toEqual([nextId])
    const { err } = await keys('list', '--admin-key', first)
    expect(err).toMatch(/^tallygate: TOKEN_INVALID: /)
    const last = await keys('delete', nextId, '--yes', '--admin-key', next)
    expect(last.err).toMatch(/^tallygate: LAST_ADMINISTRATION_KEY: /)
  })
})
