#!/usr/bin/env node
// Entry of the `tallygate` command: checks the runtime before anything is imported that an older one cannot load
// (the SQLite binding ends such a process with a signal and no message), so this file keeps to plain, old JavaScript.
import { existsSync } from 'node:fs'

const oldestMajor = 24
if (Number(process.versions.node.split('.')[0]) < oldestMajor) {
  console.error(
    `tallygate: NODE_TOO_OLD: this is Node ${process.versions.node}, tallygate needs Node ${oldestMajor} or newer. ` +
      `In a clone, run it by "npx tallygate" or an npm script: they use the runtime pinned in package.json.`,
  )
  process.exit(78)
}
// A clone runs its sources, so that a forgotten build never stands in for them; an installed package has only dist.
const source = new URL('../src/cli/main.ts', import.meta.url)
// A device has little memory: docs/explanation/benchmarks.md shows the effect of each setting. V8 reads them when it starts, so the
// process starts again in place. The Debian package starts with them. Node would close sockets that systemd passes.
const agentFlags = ['--max-semi-space-size=4', '--max-old-space-size=256', '--single-threaded-gc', '--expose-gc']
if (
  process.argv[2] === 'agent' &&
  process.platform === 'linux' &&
  process.env.LISTEN_FDS === undefined &&
  !existsSync(source) &&
  !process.execArgv.includes(agentFlags[0])
) {
  const args = [process.execPath, ...process.execArgv, ...agentFlags, ...process.argv.slice(1)]
  process.execve(process.execPath, args, { MALLOC_ARENA_MAX: '2', ...process.env })
}
// Stack traces name the sources of the bundles. Reading the maps takes time and memory, so only on request.
if (process.argv.includes('--debug')) process.setSourceMapsEnabled(true)
await import(existsSync(source) ? source.href : new URL('../dist/cli/main.js', import.meta.url).href)
