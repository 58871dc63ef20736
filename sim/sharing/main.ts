/** Shows the balances of twenty devices on one small pool: `node sim/sharing/main.ts [seed]`. */
import { formatMicro } from '../../src/core/pricing/amount.ts'
import { type DeviceHabits } from './device.ts'
import { TOKEN } from './pool.ts'
import { SharingSite } from './site.ts'

const say = (line: string): void => void process.stdout.write(`${line}\n`)

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const SEED = Number(process.argv[2] ?? 1)

const RETRY_MS = 10_000

const greedy = (n: number): DeviceHabits => ({
  name: `greedy-${n}`,
  tokens: 25,
  everyMs: 4 * MINUTE,
  retryMs: RETRY_MS,
})
const steady = (n: number): DeviceHabits => ({ name: `steady-${n}`, tokens: 3, everyMs: 3 * MINUTE, retryMs: RETRY_MS })
const modest = (n: number): DeviceHabits => ({
  name: `modest-${n}`,
  tokens: 1,
  everyMs: 12 * MINUTE,
  retryMs: RETRY_MS,
})
const idle = (n: number): DeviceHabits => ({ name: `idle-${n}`, tokens: 0, everyMs: HOUR, retryMs: RETRY_MS })
const huge: DeviceHabits = { name: 'huge', tokens: 4_000, everyMs: 5 * MINUTE, retryMs: MINUTE }

const numbers = (count: number): readonly number[] => Array.from({ length: count }, (_, index) => index + 1)
const devices = [
  ...numbers(4).map(greedy),
  ...numbers(5).map(steady),
  ...numbers(5).map(modest),
  ...numbers(5).map(idle),
  huge,
]
const QUANTITY = 2_000
const STEP_MS = 10 * MINUTE
const HOURS = 2.5
/** Tokens added after the pool has been empty for a while. */
const RAISED = { at: 1.5 * HOUR, tokens: 600 }

const site = new SharingSite({
  ...{ seed: SEED, quantity: QUANTITY, syncEveryMs: 5 * MINUTE, horizonMs: 24 * HOUR, starting: 100 },
  ...{ pushMs: 200, devices },
})

const width = 9
const row = (cells: readonly string[]): string => cells.map((cell) => cell.padStart(width)).join('')
say(`${devices.length} devices on ${QUANTITY} tokens, seed ${SEED}: balance of each by the cloud's books, in tokens\n`)
const columns = devices.map(({ name }) => name)
say(row(['hours', 'free', 'spent', ...columns.map((name) => name.slice(0, width - 1))]))
for (let at = 0; at <= HOURS * HOUR; at += STEP_MS) {
  await site.until(at)
  if (at === RAISED.at) site.cloud.raise(BigInt(RAISED.tokens) * TOKEN)
  const { pool, free } = site.cloud
  if (pool.charged + pool.grantedOut > (pool.capTarget ?? 0n)) throw new Error('more is out than the pool has')
  const spent = pool.charged + pool.billedByDevices
  say(row([(at / HOUR).toFixed(2), ...[free, spent, ...columns.map((name) => site.heldBy(name))].map(formatMicro)]))
}
say('\nanswers')
for (const { name, habits, counts, longestWaitMs } of site.devices) {
  const asks =
    habits.tokens === 0 ? 'asks for nothing' : `asks for ${habits.tokens} every ${habits.everyMs / MINUTE} min`
  const said = `granted ${counts.granted}, refused ${counts.refused}`
  say(
    `${name.padEnd(11)} ${asks.padEnd(26)} ${said.padEnd(28)} longest wait while the pool could pay: ${longestWaitMs / 1_000} s`,
  )
}
