// A whole agent through a day without the cloud, by a clock that the test moves.
import { onTestFinished, expect, it } from 'vitest'
import { composeAgent } from '../../../src/agent/compose.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { FakeTime } from '../../agent/sync/fake-time.ts'
import { Application, Site, code } from './site.ts'

const DAY = 86_400_000
/** The grant of the site is for a day, and ends early by what the clock may be wrong. */
const GRANTED = DAY - 900_000

it(
  'a day offline, with every way to be offline in turn, writes less than a megabyte of log and keeps deciding',
  { timeout: 120_000 },
  async () => {
    const site = await Site.make(10n ** 15n)
    const time = new FakeTime(Date.now())
    let bytes = 0
    let failures = 0
    const ways = ['CLOUD_UNREACHABLE', 'TRUST_MISMATCH', 'OVERLOADED', 'ANSWER_UNEXPECTED'] as const
    const agent = await composeAgent(
      site.settings({ 'grants-starting': '100000', 'sync-interval': '5m', 'log-level': 'debug' }),
      {
        time,
        timers: time,
        push: null,
        writeLog: (line) => void (bytes += Buffer.byteLength(line)),
        exchange: async (request) => {
          if (site.isOnline) return site.cloud.exchange(request)
          failures += 1
          const way = ways[failures % ways.length] ?? 'CLOUD_UNREACHABLE'
          throw new CodedError(way, `attempt ${failures} did not get there`, { details: { failures } })
        },
      },
    )
    onTestFinished(() => agent.stop())
    const application = new Application(agent)
    await expect
      .poll(async () => {
        time.advance(1_000)
        return (await application.status()).accounts.length
      })
      .toBeGreaterThan(0)

    site.isOnline = false
    const begin = time.sinceBoot()
    bytes = 0
    for (let asked = 0; time.sinceBoot() - begin < DAY; asked++) {
      time.advance(Math.min(time.untilNext, 5 * 60_000))
      // Whatever the timers have begun is through when the journal answers.
      const status = await application.status()
      expect(status.fenced).toBe(false)
      const isGranted = time.sinceBoot() - begin < GRANTED
      if (isGranted && asked % 20 === 0) expect(code(await application.ask(1))).toBe('101')
    }
    expect(failures).toBeGreaterThan(200)
    expect(bytes).toBeGreaterThan(0)
    expect(bytes).toBeLessThan(1_000_000)
  },
)
