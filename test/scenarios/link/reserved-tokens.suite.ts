// What an administrator decides about a device, and what becomes of the usage that it has recorded and not delivered: the real twin
// over HTTP, the real link and ledger of a device, and only time and the network in the hands of the test.
import { describe, expect, it, onTestFinished } from 'vitest'
import { deviceState } from '../../../src/protocol/edge/administration.ts'
import { openTwin, type SettingsChange, type Twin } from '../../cloud/harness.ts'
import { deviceAt } from './device-at-twin.ts'

const DAY = 86_400_000
const TOKEN = 1_000_000n

/** @param settings of a twin over a store that is empty */
export function reservedTokensSuite(name: string, settings: () => Promise<SettingsChange>): void {
  describe(`a device that is held back, at ${name}`, () => {
    async function openSite() {
      const twin = await openTwin(await settings())
      onTestFinished(() => twin[Symbol.asyncDispose]())
      return { twin, instanceId: await twin.shop({ quantity: 1_000 }) }
    }

    async function join(site: { twin: Twin; instanceId: string }) {
      const device = await deviceAt(site.twin, site.instanceId)
      await device.start()
      await device.settle()
      const id = device.link.status().deviceId ?? ''
      const path = `/edge/api/v1/devices/${id}`
      return {
        device,
        command: async (what: string) => {
          const { status, text } = await site.twin.call('POST', `${path}/${what}`)
          if (status >= 300) throw new Error(text)
        },
        shown: async () => deviceState.parse((await site.twin.call('GET', path)).body),
        /** Both clocks move on. */
        pass: async (ms: number) => {
          site.twin.now += ms
          await device.pass(ms)
        },
      }
    }

    /** What the bill has of the instance, micro-tokens by operation. */
    async function billed({ twin, instanceId }: { twin: Twin; instanceId: string }): Promise<Record<string, bigint>> {
      const query = `format=ndjson&instanceId=${instanceId}`
      const response = await fetch(`${twin.cloud.address}/provisioning/api/v1.1/usage?${query}`, {
        headers: { authorization: `Bearer ${await twin.administrationToken()}` },
      })
      const sums: Record<string, bigint> = {}
      for (const line of (await response.text()).split('\n')) {
        if (line === '') continue
        const { operation, tokens } = JSON.parse(line) as { operation: string; tokens: number }
        sums[operation] = (sums[operation] ?? 0n) + BigInt(Math.round(tokens * 1e6))
      }
      return sums
    }

    it('bills usage once before it enrolls again after its service ended offline', async () => {
      const site = await openSite()
      const { device, command, shown, pass } = await join(site)
      expect(await device.charge(1n * TOKEN)).toBe('GRANTED')
      await device.sync()
      device.network.down = true
      expect(await device.charge(2n * TOKEN)).toBe('GRANTED')
      await command('terminate')
      // It does not know yet: it is bounded by its grant.
      expect(await device.charge(3n * TOKEN)).toBe('GRANTED')
      await pass(60_000)
      // A token from before does not permit a restart.
      await device.restart()
      device.network.down = false
      await device.sync()
      expect(device.link.status()).toMatchObject({ suspension: { state: 'TERMINATED' }, backlog: 0, epoch: 1 })
      expect(await device.charge(1n * TOKEN)).toBe('REFUSED')
      expect(await billed(site)).toEqual({ REQUEST: 6n * TOKEN })
      expect((await shown()).outstanding.map(({ unreported }) => unreported)).toEqual([0n])

      site.twin.now += 2_000
      device.token = await site.twin.enrollmentToken(site.instanceId)
      await device.restart()
      await device.sync()
      expect(device.link.status()).toMatchObject({ suspension: null, fenced: false, epoch: 2 })
      expect((await shown()).suspension).toBeNull()
      expect(await device.charge(4n * TOKEN)).toBe('GRANTED')
      await device.sync()
      expect(await billed(site)).toEqual({ REQUEST: device.told.charged })
      expect(device.told.charged).toBe(10n * TOKEN)
      expect(await site.twin.used(site.instanceId, 'ACT-1')).toBe(10)
    })

    it('delivers its usage before it enrolls, even if it is killed during a sync and restarts with a new enrollment token', async () => {
      const site = await openSite()
      const { device, command, pass } = await join(site)
      expect(await device.charge(5n * TOKEN)).toBe('GRANTED')
      await command('terminate')
      await pass(2_000)
      device.network.faults = ['LOSE_ANSWER']
      await device.sync()
      expect(await device.charge(1n * TOKEN)).toBe('GRANTED')
      device.token = await site.twin.enrollmentToken(site.instanceId)
      for (const fault of ['LOSE_ANSWER', 'LOSE_REQUEST', 'LOSE_ANSWER', 'LOSE_ANSWER', 'REPEAT_REQUEST'] as const) {
        await device.restart({ reboot: fault === 'LOSE_REQUEST' })
        device.network.faults = [fault]
        await device.sync()
      }
      for (let rounds = 0; rounds < 5; rounds += 1) await device.sync()
      expect(device.link.status()).toMatchObject({ suspension: null, epoch: 2, backlog: 0 })
      expect(await billed(site)).toEqual({ REQUEST: device.told.charged })
      expect(device.told.charged).toBe(6n * TOKEN)
    })

    it('delivers the entries of a copy as an undelivered range after it has enrolled again', async () => {
      const site = await openSite()
      const { device, command, pass } = await join(site)
      expect(await device.charge(1n * TOKEN)).toBe('GRANTED')
      await device.sync()
      const backup = device.disk.copy()
      expect(await device.charge(2n * TOKEN)).toBe('GRANTED')
      await device.sync()
      device.kill()
      device.disk = backup
      await device.restart()
      expect(await device.charge(4n * TOKEN)).toBe('GRANTED')
      await command('terminate')
      for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
      expect(await device.charge(1n * TOKEN)).toBe('REFUSED')
      await pass(2_000)
      device.token = await site.twin.enrollmentToken(site.instanceId)
      await device.restart()
      for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
      expect(device.link.status()).toMatchObject({ suspension: null, epoch: 3, backlog: 0 })
      expect(await device.charge(1n * TOKEN)).toBe('GRANTED')
      await device.sync()
      expect(await billed(site)).toEqual({ REQUEST: 8n * TOKEN })
    })

    it('is billed for its granted tokens when its key is revoked, and becomes another device when it enrolls again', async () => {
      const site = await openSite()
      const { device, command, shown } = await join(site)
      expect(await device.charge(1n * TOKEN)).toBe('GRANTED')
      await device.sync()
      device.network.down = true
      expect(await device.charge(2n * TOKEN)).toBe('GRANTED')
      await command('revoke')
      device.network.down = false
      await device.sync()
      expect(device.conditions.length).toBeGreaterThan(0)
      const [held] = (await shown()).outstanding
      expect(held!.unreported).toBeGreaterThanOrEqual(2n * TOKEN)
      expect(await billed(site)).toEqual({ REQUEST: 1n * TOKEN })

      const other = await join(site)
      expect(other.device.link.status().deviceId).not.toBe(device.link.status().deviceId)
      expect(await other.device.charge(3n * TOKEN)).toBe('GRANTED')
      await other.device.sync()
      device.kill()
      for (let days = 0; days < 31; days += 1) {
        site.twin.now += DAY
        other.device.time.advance(DAY)
        await other.device.sync()
      }
      await site.twin.tick()
      await site.twin.tick()
      const expected = { REQUEST: 4n * TOKEN, SETTLEMENT: held!.unreported }
      expect(await billed(site)).toEqual(expected)
      await site.twin.advance(DAY)
      expect(await billed(site)).toEqual(expected)
    })

    it('learns of a lock when it reconnects, stays locked after an offline restart, and continues once it is unlocked', async () => {
      const site = await openSite()
      const { device, command, pass } = await join(site)
      device.network.down = true
      await command('lock')
      expect(await device.charge(2n * TOKEN)).toBe('GRANTED')
      device.network.down = false
      await device.sync()
      expect(device.link.status()).toMatchObject({ suspension: { state: 'LOCKED' }, backlog: 0 })
      expect(device.activePolicies.suspension).toMatchObject({ state: 'LOCKED' })
      device.network.down = true
      await device.restart({ reboot: true })
      await device.settle()
      expect(device.activePolicies.suspension).toMatchObject({ state: 'LOCKED' })
      await command('unlock')
      await pass(60_000)
      expect(device.activePolicies.suspension).toMatchObject({ state: 'LOCKED' })
      device.network.down = false
      await device.sync()
      expect(device.activePolicies.suspension).toBeNull()
      expect(await device.charge(1n * TOKEN)).toBe('GRANTED')
      await device.sync()
      expect(await billed(site)).toEqual({ REQUEST: 3n * TOKEN })
    })

    it('stops at the end of its grant if it is locked and never reconnects', async () => {
      const site = await openSite()
      const { device, command } = await join(site)
      device.network.down = true
      await command('lock')
      const { expiresAt } = device.ledger.grant() ?? { expiresAt: 0 }
      expect(expiresAt).toBeGreaterThan(site.twin.now)
      device.time.advance(expiresAt - site.twin.now + 1)
      expect(device.ledger.hasExpired(device.clock.reading())).toBe(true)
    })

    it('returns its unused tokens once when it reconnects after a drain command', async () => {
      const site = await openSite()
      const { device, command, shown } = await join(site)
      device.network.down = true
      await command('lock')
      await command('release')
      expect((await shown()).releaseRequested).toBe(true)
      expect(await device.charge(3n * TOKEN)).toBe('GRANTED')
      await device.restart()
      device.network.down = false
      for (let rounds = 0; rounds < 3; rounds += 1) await device.sync()
      const state = await shown()
      expect(state.outstanding.map(({ unreported }) => unreported)).toEqual([0n])
      expect(state.releaseRequested).toBe(false)
      expect(device.left).toBe(0n)
      expect(await billed(site)).toEqual({ REQUEST: 3n * TOKEN })
      // All the rest is there for others.
      const { status } = await site.twin.access(site.instanceId, { Print: 997 })
      expect(status).toBe(200)
    })
  })
}
