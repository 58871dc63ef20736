// The agent as a whole, over its socket, with its database, and with a cloud that answers in memory.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { billed } from '../../../src/core/accounts/grant.ts'
import { INSTANCE } from '../../agent/sync/fake-cloud.ts'
import type { CodedError } from '../../../src/protocol/errors.ts'
import { ACCOUNT, Application, code, Site } from './site.ts'

describe('the agent', () => {
  it('enrolls, takes rules and tokens, decides, delivers, and is billed what it has charged', async () => {
    const site = await Site.make()
    const application = new Application(await site.start())
    const ready = await application.until(({ accounts }) => accounts.length > 0)
    expect(ready).toMatchObject({ connected: true, epoch: 1, policies: [{ instanceId: INSTANCE, applied: 1 }] })

    expect(code(await application.ask(2.5))).toBe('101')
    expect(code(await application.ask(40))).toBe('101')
    const delivered = await application.until(({ backlog, lastEntry }) => lastEntry === 2 && backlog === 0)
    expect(site.cloud.billedOn(ACCOUNT)).toBe(42_500_000n)
    expect(delivered.accounts.map(billed)).toEqual([42_500_000n])
    expect(site.cloud.alarms).toEqual([])
  })

  it('asks the cloud for a request that is larger than its grant, and the pool is never oversold', async () => {
    const site = await Site.make()
    const application = new Application(await site.start({ 'sync-interval': '1h' }))
    await application.until(({ accounts }) => accounts.length > 0)
    expect(code(await application.ask(700))).toBe('101')
    expect(code(await application.ask(700))).not.toBe('101')
    expect(code(await application.ask(250))).toBe('101')
    expect(site.cloud.outOn(ACCOUNT) <= 1_000_000_000n).toBe(true)
  })

  it.each([
    ['it lacks tokens and may not wait for a top-up', {}, '208'],
    ['it needs rules that are confirmed again', { usableForMs: 1 }, 'POLICY_STALE'],
  ])('tries an unreachable cloud again within 10 s of a request when %s', async (_, changes, refusal) => {
    const site = await Site.make(1_000_000_000n, changes)
    const application = await Application.ready(
      await site.start({ 'sync-backoff-min': '5m', 'grants-top-up-deadline': '0ms' }),
    )
    site.isOnline = false
    await application.until(({ retryInMs }) => retryInMs !== null)
    expect(await application.ask(500).then(code, (error: unknown) => (error as CodedError).code)).toBe(refusal)
    expect((await application.status()).retryInMs).toBeLessThanOrEqual(10_000)
  })

  it('charges a request once under its idempotency key, also over a restart', async () => {
    const site = await Site.make()
    const first = await site.start()
    const application = await Application.ready(first)
    const key = { 'idempotency-key': 'Auftrag 7/1' }
    const answer = await application.ask(2, key)
    expect(await application.ask(2, key)).toEqual(answer)
    await expect(application.ask(3, key)).rejects.toMatchObject({ code: 'IDEMPOTENCY_CONFLICT' })
    await first.stop()
    const again = new Application(await site.start())
    expect(await again.ask(2, key)).toEqual(answer)
    expect((await again.ask(2, { 'idempotency-key': 'another' })).correlationId).not.toBe(answer.correlationId)
    expect(await again.status()).toMatchObject({ lastEntry: 2 })
  })

  it('continues offline within its grant, over restarts, and delivers everything when the line is back', async () => {
    const site = await Site.make()
    const first = await site.start()
    await Application.ready(first)
    expect(code(await new Application(first).ask(10))).toBe('101')
    await first.stop()

    site.isOnline = false
    const second = await site.start()
    const application = new Application(second)
    expect(code(await application.ask(30))).toBe('101')
    expect(code(await application.ask(500))).toBe('208')
    const alone = await application.status()
    expect(alone).toMatchObject({ connected: false, lastEntry: 3 })
    expect(alone.backlog).toBeGreaterThanOrEqual(2)
    await second.stop()

    site.isOnline = true
    const third = new Application(await site.start())
    expect(code(await third.ask(1))).toBe('101')
    await third.until(({ backlog, connected }) => connected && backlog === 0)
    expect(site.cloud.billedOn(ACCOUNT)).toBe(41_000_000n)
    expect(site.cloud.alarms).toEqual([])
  })

  it('gives a retry the answer that it had before the restart', async () => {
    const site = await Site.make()
    const first = await site.start()
    await Application.ready(first)
    const session = { 'x-tallygate-session': '64d2028c-ae87-4069-a624-66089d957ef9', 'x-tallygate-request': '1' }
    const answer = await new Application(first).ask(10, session)
    await first.stop()
    site.isOnline = false
    const again = new Application(await site.start())
    expect(await again.ask(10, session)).toEqual(answer)
    expect((await again.status()).accounts.map(billed)).toEqual([10_000_000n])
  })

  it('shares neither its state nor its socket with a second one', async () => {
    const site = await Site.make()
    const agent = await site.start()
    await expect(site.start()).rejects.toMatchObject({ code: 'STATE_IN_USE' })
    const elsewhere = join(site.directory, 'elsewhere')
    await expect(site.start({ 'state-directory': elsewhere })).rejects.toMatchObject({ code: 'SOCKET_IN_USE' })
    expect((await new Application(agent).status()).version).toMatch(/^\d/)
    // What could not start has let go of what it held.
    const socket = { 'state-directory': elsewhere, 'socket-path': join(site.directory, 'other.sock') }
    await (await site.start(socket)).stop()
  })

  it('says in one line of its log which ledger it has put aside where, and what to do, until the file is taken away', async () => {
    const site = await Site.make()
    site.isOnline = false
    const told = () => {
      const lines = site.log.splice(0).map((line) => JSON.parse(line) as Record<string, unknown>)
      return lines.filter((line) => line['code'] === 'LEDGER_SALVAGED')
    }
    mkdirSync(site.stateDirectory, { recursive: true })
    writeFileSync(join(site.stateDirectory, 'journal.db'), 'a diary, and no ledger\n'.repeat(1_000))
    for (const start of ['the first', 'another']) {
      const agent = await site.start()
      const [line, ...more] = told()
      expect([start, more]).toEqual([start, []])
      const file = String(line?.['file'])
      expect(file).toContain(`${join(site.stateDirectory, 'journal.db')}.damaged-`)
      expect(line).toMatchObject({ level: 40, lostEntries: null })
      expect(line?.['remedy']).toMatch(/moved away/)
      expect(readFileSync(file, 'utf8')).toContain('a diary')
      const { conditions } = await new Application(agent).status()
      const shown = conditions.filter((condition) => condition.code === 'LEDGER_SALVAGED')
      expect(shown.map(({ message }) => message.includes(file))).toEqual([true])
      await agent.stop()
      if (start === 'another') rmSync(file)
    }
    await site.start()
    expect(told()).toEqual([])
  })

  it('starts before it is enrolled while the cloud is out of reach, and reports both', async () => {
    const site = await Site.make()
    site.isOnline = false
    const agent = await site.start()
    const application = new Application(agent)
    await expect(application.ask(1)).rejects.toMatchObject({ code: 'NOT_ENROLLED' })
    expect(await application.status()).toMatchObject({ deviceId: null, epoch: 0, accounts: [] })
    await agent.stop()
    await agent.ended
    expect(existsSync(agent.socketPath)).toBe(false)
  })

  it('names the missing file of its enrollment token, and needs none once it is enrolled', async () => {
    const site = await Site.make()
    const path = join(site.directory, 'deleted')
    const withoutToken = await site.start({ 'enrollment-token-file': path })
    const { conditions } = await new Application(withoutToken).until((status) => status.conditions.length > 0)
    const message = `There is no enrollment token: ${path} does not exist.`
    expect(conditions).toMatchObject([{ subject: 'enrollment', code: 'NOT_ENROLLED', message }])
    await withoutToken.stop()
    const enrolled = await site.start()
    await Application.ready(enrolled)
    await enrolled.stop()
    const restarted = await Application.ready(await site.start({ 'enrollment-token-file': path }))
    expect(code(await restarted.ask(1))).toBe('101')
  })

  it('reports no error of its stop on a full disk', async () => {
    const site = await Site.make()
    // A directory in the place of the file: the space cannot be reserved.
    mkdirSync(join(site.stateDirectory, 'journal.db-disk-reserve'), { recursive: true })
    const agent = await site.start()
    await new Application(agent).until(({ connected }) => connected)
    await agent.stop()
    expect(site.log.filter((line) => line.includes('an error occurred during the stop'))).toEqual([])
  })

  it('releases everything when it stops, also if the service manager cannot be notified', async () => {
    const site = await Site.make()
    const stopping = (): void => {
      throw new Error('the socket of the service manager is gone')
    }
    const supervisor = { watchdogMs: null, ready: () => undefined, well: () => undefined, stopping }
    const agent = await site.start({}, { supervisor })
    await agent.stop()
    expect(existsSync(agent.socketPath)).toBe(false)
  })
})
