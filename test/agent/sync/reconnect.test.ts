// A fleet that lost the cloud in the same moment: when the cloud is back, it comes back spread out, by the code that
// schedules the rounds of every device, with randomness and time of the test.
import { describe, expect, it } from 'vitest'
import { backoff } from '../../../src/agent/sync/backoff.ts'
import { SYNC } from './test-device.ts'
import { type RoundResult, Rounds } from '../../../src/agent/sync/rounds.ts'
import { MQTT_DEFAULTS } from '../../../src/agent/platform/mqtt/mqtt-push.ts'
import { seeded } from '../../../src/demo/random.ts'

const DEVICES = 2_000
const SECOND = 1_000
const MINUTE = 60_000
const HOUR = 60 * MINUTE

/** One clock for all of them: what is due next is found without looking at every device. */
class FleetTime {
  now = 0
  readonly #due = new Map<number, (() => void)[]>()

  after(ms: number, call: () => void): () => void {
    const at = this.now + Math.ceil(ms)
    let live = true
    const calls = this.#due.get(at) ?? []
    this.#due.set(at, calls)
    calls.push(() => {
      if (live) call()
    })
    return () => {
      live = false
    }
  }

  async runTo(end: number): Promise<void> {
    for (; this.now <= end; this.now += 1) {
      for (let calls = this.#due.get(this.now); calls !== undefined; calls = this.#due.get(this.now)) {
        this.#due.delete(this.now)
        for (const call of calls) call()
        // A round ends a few turns of its promises after it began.
        for (let turn = 0; turn < 5; turn += 1) await Promise.resolve()
      }
    }
  }
}

interface Outage {
  readonly downAt: number
  readonly upAt: number
  /** The broker is away for the same time. */
  readonly push?: boolean
  readonly fraction?: () => number
  /** Applications request tokens that the devices do not have. */
  readonly lacksTokens?: boolean
}

/** Rounds that began, per second from the moment at which the cloud was back; and when each device had its first. */
async function fleet({ downAt, upAt, push = false, fraction: fixed, lacksTokens = false }: Outage) {
  const time = new FleetTime()
  const random = seeded(7)
  const fraction = fixed ?? ((): number => random.between(0, 2 ** 30 - 1) / 2 ** 30)
  const perSecond = new Map<number, number>()
  const back = new Map<number, number>()
  const { backoffMin, backoffMax, interval } = SYNC
  const isDown = (): boolean => time.now >= downAt && time.now < upAt
  const attempts: number[] = []

  for (let device = 0; device < DEVICES; device += 1) {
    attempts.push(0)
    const rounds = new Rounds({
      timers: time,
      sinceBoot: () => time.now,
      randomness: { fraction },
      backoffBaseMs: backoffMin,
      backoffCapMs: backoffMax,
      round: async (): Promise<RoundResult> => {
        if (isDown()) {
          attempts[device]! += 1
          if (lacksTokens) time.after(1, () => rounds.hasten())
          return { ok: false, retryAfterMs: 0 }
        }
        if (time.now >= upAt) {
          const second = Math.floor((time.now - upAt) / SECOND)
          perSecond.set(second, (perSecond.get(second) ?? 0) + 1)
          if (!back.has(device)) back.set(device, time.now - upAt)
        }
        return { ok: true, nextMs: interval }
      },
    })
    // They were switched on over an hour.
    time.after(fraction() * Math.min(HOUR, downAt / 2), () => rounds.wake('timer'))
    if (!push) continue
    let failures = 0
    const connect = (): void => {
      if (!isDown()) {
        rounds.endBackoff()
        return
      }
      failures += 1
      time.after(backoff(failures, 0, fraction(), MQTT_DEFAULTS.backoff), connect)
    }
    time.after(downAt, connect)
  }
  await time.runTo(upAt + 2 * backoffMax)
  const seconds = [...perSecond.values()]
  return { back: [...back.values()], peak: Math.max(...seconds), perSecond, attempts }
}

describe('2,000 devices that lost the cloud in the same moment', () => {
  it.each<[string, Outage]>([
    ['two hours, as its network does,', { downAt: HOUR, upAt: 3 * HOUR }],
    ['two hours, and their broker with it,', { downAt: HOUR, upAt: 3 * HOUR, push: true }],
    ['twenty minutes', { downAt: HOUR, upAt: HOUR + 20 * MINUTE }],
  ])('for %s come back within five minutes, never more than 40 in a second', async (_what, outage) => {
    const { back, peak, attempts } = await fleet(outage)
    expect(back).toHaveLength(DEVICES)
    expect(Math.max(...back)).toBeLessThanOrEqual(SYNC.backoffMax)
    // Waits of up to five minutes, in the middle of which the cloud is back: 13 in the first second on average, then fewer.
    expect(peak).toBeLessThanOrEqual(40)
    // Nor do they hammer at it while it is away: in the long run one attempt in two and a half minutes each.
    const minutes = (outage.upAt - outage.downAt) / MINUTE
    const perMinute = attempts.reduce((sum, count) => sum + count, 0) / DEVICES / minutes
    expect(perMinute).toBeLessThan(minutes > 60 ? 0.5 : 0.8)
  })

  it('try each 5 to 10 seconds while they lack tokens, and come back spread over these', async () => {
    const { back, peak, attempts } = await fleet({ downAt: HOUR, upAt: HOUR + 10 * MINUTE, lacksTokens: true })
    expect(back).toHaveLength(DEVICES)
    expect(Math.max(...back)).toBeLessThanOrEqual(10 * SECOND)
    expect(peak).toBeLessThanOrEqual(DEVICES / 4)
    expect(Math.max(...attempts)).toBeLessThanOrEqual(10 * 12 + 10)
  })

  it('for ten seconds cause no rush', async () => {
    const { back, peak } = await fleet({ downAt: HOUR, upAt: HOUR + 10 * SECOND })
    expect(back.length).toBeGreaterThan(DEVICES - 20)
    expect(peak).toBeLessThanOrEqual(60)
  })

  it('would reconnect in the same second without jitter', async () => {
    const { peak } = await fleet({ downAt: HOUR, upAt: 3 * HOUR, fraction: () => 0.5 })
    expect(peak).toBe(DEVICES)
  })
})
