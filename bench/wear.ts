/**
 * `npm run bench:wear`: bytes that the agent writes to storage per decision (`write_bytes`), with 1 and 64 connections,
 * and while idle.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { orUsage } from '../scripts/or-usage.ts'
import { agent, writeBehindAgent } from './contenders/agent.ts'
import { withPlace } from './contenders/place.ts'
import { LoadGenerator } from './load/generator.ts'
import { measureStorage } from './measure/storage.ts'

const LOAD_MS = 4_000

/** An idle agent writes its clock once a minute. */
const IDLE_MS = 125_000

function written(pid: number): number {
  return Number(/^write_bytes: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, 'utf8'))?.[1])
}

const USAGE = `npm run bench:wear -- [OPTION]

Bytes that the agent writes to storage per decision.

  --idle   also those of an idle agent, which takes two minutes more
  --help   this text
`

const { idle } = orUsage(USAGE, () => parseArgs({ options: { idle: { type: 'boolean', default: false } } })).values
const parent = mkdtempSync(join(process.cwd(), 'bench-wear-'))
const generator = new LoadGenerator()
try {
  const { fileSystem, device } = measureStorage(parent)
  console.log(`storage ${fileSystem} on ${device}`)
  for (const contender of [agent, writeBehindAgent]) {
    await withPlace(parent, async (place) => {
      const running = await contender.start(place)
      const { pid, target } = running
      for (const connections of [1, 64]) {
        const before = written(pid)
        const { acknowledged } = await generator.run({ target, connections, warmupMs: 0, durationMs: LOAD_MS })
        // Write-behind reaches the disk within a second; checkpoints come later.
        await delay(3_000)
        const bytes = written(pid) - before
        console.log(
          `${contender.name}, ${connections} connections: ${Math.round(bytes / acknowledged)} bytes a decision`,
        )
      }
      if (idle && contender === agent) {
        const before = written(pid)
        await delay(IDLE_MS)
        const perDay = ((written(pid) - before) / IDLE_MS) * 86_400_000
        console.log(`${contender.name}, idle: ${(perDay / 2 ** 20).toFixed(1)} MiB a day`)
      }
      await running.killAndCount()
    })
  }
} finally {
  generator.stop()
  rmSync(parent, { recursive: true, force: true })
}
