// Readiness tries what a request does; over a whole agent, and over a journal that fails.
import { describe, expect, it } from 'vitest'
import {
  PROBE_EVERY_MS,
  PROBE_TIMEOUT_MS,
  ReadinessProbe,
  type ReadinessDeps,
  WATCH_WRITES_EVERY_MS,
} from '../../../src/agent/diagnostics/readiness.ts'
import { ActivePolicies, type PolicyInForce } from '../../../src/agent/policy/active-policies.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { STAMP, policyInForce } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { BEGIN } from '../sync/fake-time.ts'

class Fixture {
  sinceBoot = 0
  writes = 0
  write: () => Promise<void> = async () => undefined
  readonly #timers: { readonly ms: number; readonly call: () => void }[] = []
  readonly probe: ReadinessProbe

  static async make(changes: Partial<ReadinessDeps> = {}): Promise<Fixture> {
    return new Fixture(await policyInForce(1), changes)
  }

  private constructor(policy: PolicyInForce, changes: Partial<ReadinessDeps>) {
    const policies = new ActivePolicies()
    policies.put(policy)
    const reading = { now: BEGIN, earliest: BEGIN, latest: BEGIN }
    this.probe = new ReadinessProbe({
      ledger: {
        chargeable: () => () => ({ left: 0n, shortage: 'GRANT' }),
        stamp: () => STAMP,
      } as unknown as ReadinessDeps['ledger'],
      policies,
      link: { status: () => ({ deviceId: 'device', policies: [{ instanceId: INSTANCE }] }) },
      clock: { reading: () => reading, sinceBoot: () => this.sinceBoot },
      journal: {
        saveClock: () => {
          this.writes += 1
          return this.write()
        },
      },
      timers: {
        after: (ms, call) => {
          this.#timers.push({ ms, call })
          return () => undefined
        },
      },
      ...changes,
    })
  }

  expire(ms: number): void {
    for (const timer of this.#timers) if (timer.ms <= ms) timer.call()
  }
}

describe('readiness', () => {
  it('is true with rules and a journal, also when no tokens are left', async () => {
    const { probe } = await Fixture.make()
    expect(await probe.check()).toEqual({
      ready: true,
      checks: [
        { name: 'decision', ok: true },
        { name: 'journal', ok: true },
      ],
    })
  })

  it('names the reason why a request cannot be decided', async () => {
    const missing = await Fixture.make({ policies: new ActivePolicies() })
    expect((await missing.probe.check()).checks[0]).toMatchObject({ ok: false, code: 'POLICY_MISSING' })
    const stranger = await Fixture.make({
      link: { status: () => ({ deviceId: null, policies: [] }) },
    })
    expect(await stranger.probe.check()).toMatchObject({
      ready: false,
      checks: [{ code: 'NOT_ENROLLED' }, { ok: true }],
    })
  })

  it('fails with the reason when the journal accepts no writes', async () => {
    const fixture = await Fixture.make()
    fixture.write = async () => Promise.reject(new CodedError('NOT_RECORDED', 'the disk is full'))
    expect(await fixture.probe.check()).toMatchObject({
      ready: false,
      checks: [{ ok: true }, { ok: false, code: 'NOT_RECORDED', message: 'the disk is full' }],
    })
  })

  it('fails with a journal that does not answer in time', async () => {
    const fixture = await Fixture.make()
    fixture.write = () => new Promise(() => undefined)
    const checking = fixture.probe.check()
    fixture.expire(PROBE_TIMEOUT_MS)
    expect((await checking).checks[1]).toMatchObject({ ok: false, code: 'NOT_RECORDED' })
  })

  it('limits its test writes although it is queried more often', async () => {
    const fixture = await Fixture.make()
    for (let n = 0; n < 100; n += 1) await fixture.probe.check()
    expect(fixture.writes).toBe(1)
    fixture.sinceBoot = PROBE_EVERY_MS
    await fixture.probe.check()
    expect(fixture.writes).toBe(2)
  })
})

describe('whether a new start could help', () => {
  it('is denied while all parts work, even if they refuse requests', async () => {
    const missing = await Fixture.make({ policies: new ActivePolicies() })
    expect(await missing.probe.works()).toBe(true)
    const full = await Fixture.make()
    full.write = async () => Promise.reject(new CodedError('NOT_RECORDED', 'the disk is full'))
    expect(await full.probe.works()).toBe(true)
  })

  it('is affirmed while the journal is silent or closed, until it answers again', async () => {
    const fixture = await Fixture.make()
    fixture.write = () => new Promise(() => undefined)
    const silent = fixture.probe.works()
    await Promise.resolve()
    await Promise.resolve()
    fixture.expire(PROBE_TIMEOUT_MS)
    expect(await silent).toBe(false)
    fixture.sinceBoot += PROBE_EVERY_MS
    fixture.write = async () => Promise.reject(new Error('closed'))
    expect(await fixture.probe.works()).toBe(false)
    fixture.sinceBoot += PROBE_EVERY_MS
    fixture.write = async () => undefined
    expect(await fixture.probe.works()).toBe(true)
  })

  it('is found out by a write soon after a refused one, so that a disk with space again is noticed', async () => {
    const fixture = await Fixture.make()
    fixture.write = async () => Promise.reject(new CodedError('NOT_RECORDED', 'the disk is full'))
    await fixture.probe.works()
    fixture.sinceBoot += PROBE_EVERY_MS
    await fixture.probe.works()
    expect(fixture.writes).toBe(2)
  })

  it('is found out by a write once a minute at most', async () => {
    const fixture = await Fixture.make()
    for (; fixture.sinceBoot < WATCH_WRITES_EVERY_MS; fixture.sinceBoot += 10_000) await fixture.probe.works()
    expect(fixture.writes).toBe(1)
    await fixture.probe.works()
    expect(fixture.writes).toBe(2)
  })
})
