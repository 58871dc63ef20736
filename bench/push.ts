// `npm run bench:push`: time from an administrator's change until it is in force on a connected device,
// polled every millisecond.
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { orUsage } from '../scripts/or-usage.ts'
import { wholeNumber } from '../scripts/whole-number.ts'
import { Site } from './push/site.ts'

/** Longest pause between changes, ms: avoids a fixed phase. */
const SPREAD_MS = 2_000

const USAGE = `npm run bench:push -- [CHANGES]

Time from an administrator's change until it is in force on a connected device, for so many changes (200).
`

const changes = orUsage(USAGE, () => {
  const [count = '200', ...others] = parseArgs({ allowPositionals: true }).positionals
  if (others.length > 0) throw new Error('Give one number.')
  return wholeNumber('CHANGES', count)
})
const directory = await mkdtemp(join(tmpdir(), 'tallygate-push-'))
const site = await Site.open(directory)
try {
  await site.startAgent(await site.enrollmentToken())
  const applied = async (): Promise<number> => (await site.status()).policies[0]?.applied ?? 0
  while ((await site.status()).push !== 'CONNECTED' || (await applied()) === 0) await pause(20)
  const [answered, inForce]: [number[], number[]] = [[], []]
  for (let change = 1; change <= changes; change += 1) {
    await pause(Math.random() * SPREAD_MS)
    const before = await applied()
    const begun = performance.now()
    await site.change(1_000_000 + change)
    answered.push(performance.now() - begun)
    while ((await applied()) <= before) await pause(1)
    inForce.push(performance.now() - begun)
  }
  process.stdout.write(`changes: ${changes}\n`)
  process.stdout.write(`request answered by the cloud, ms: ${quantiles(answered)}\n`)
  process.stdout.write(`in force on the device, ms: ${quantiles(inForce)}\n`)
} finally {
  await site[Symbol.asyncDispose]()
  await rm(directory, { recursive: true, force: true })
}

function quantiles(times: readonly number[]): string {
  const sorted = times.toSorted((a, b) => a - b)
  const at = (part: number): string => (sorted[Math.ceil(part * sorted.length) - 1] ?? 0).toFixed(1)
  return `median ${at(0.5)}, p90 ${at(0.9)}, p99 ${at(0.99)}, longest ${at(1)}`
}
