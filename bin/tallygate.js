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
// Stack traces name the sources of the bundles. Reading the maps takes time and memory, so only on request.
if (process.argv.includes('--debug')) process.setSourceMapsEnabled(true)
// A clone runs its sources, so that a forgotten build never stands in for them; an installed package has only dist.
const source = new URL('../src/cli/main.ts', import.meta.url)
await import(existsSync(source) ? source.href : new URL('../dist/cli/main.js', import.meta.url).href)
