#!/usr/bin/env node
// Entry of the `tallygate` command: checks the runtime before anything is imported that an older one cannot load
// (the SQLite binding ends such a process with a signal and no message), so this file keeps to plain, old JavaScript.
import { existsSync } from 'node:fs'

// The first with long-term support. Its zlib reads a ledger that another Node compressed.
const oldestMajor = 24
const oldestMinor = 11
const [major, minor] = process.versions.node.split('.').map(Number)
if (major < oldestMajor || (major === oldestMajor && minor < oldestMinor)) {
  console.error(
    `tallygate: NODE_TOO_OLD: this is Node ${process.versions.node}, tallygate needs Node ${oldestMajor}.${oldestMinor} or newer. ` +
      `In a clone, run it by "npx tallygate" or an npm script: they use the runtime pinned in package.json.`,
  )
  process.exit(78)
}
// A clone runs its sources, so that a forgotten build never stands in for them; an installed package has only dist.
const source = new URL('../src/cli/main.ts', import.meta.url)
// docs/explanation/benchmarks.md shows the effect of each setting: a device has little memory, and a cloud keeps what many devices deliver
// at once. V8 reads them when it starts, so the process starts again in place. The Debian package starts with them. Node would close
// sockets that systemd passes.
const settings = new Map([
  [
    'agent',
    {
      // Node 24 does not start with a setting that it does not know.
      flags: [
        '--max-semi-space-size=8',
        '--max-old-space-size=256',
        '--heap-growing-percent=40',
        ...(major === oldestMajor ? [] : ['--no-memory-pool']),
        '--expose-gc',
      ],
      env: { MALLOC_ARENA_MAX: '2' },
    },
  ],
  ['cloud', { flags: ['--max-semi-space-size=16'], env: {} }],
]).get(process.argv[2])
if (
  settings !== undefined &&
  process.platform === 'linux' &&
  process.env.LISTEN_FDS === undefined &&
  !existsSync(source) &&
  !process.execArgv.some((flag) => flag.startsWith('--max-semi-space-size='))
) {
  const args = [process.execPath, ...process.execArgv, ...settings.flags, ...process.argv.slice(1)]
  process.execve(process.execPath, args, { ...settings.env, ...process.env })
}
// Stack traces name the sources of the bundles. Reading the maps takes time and memory, so only on request.
if (process.argv.includes('--debug')) process.setSourceMapsEnabled(true)
await import(existsSync(source) ? source.href : new URL('../dist/cli/main.js', import.meta.url).href)
