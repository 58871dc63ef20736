import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { expect, it } from 'vitest'

const SETUP = new URL('end-children.ts', import.meta.url).href

it.each(['SIGKILL', 'SIGTERM'] as const)('ends processes of tests whose own process ends with %s', async (signal) => {
  const script = `
    await import('${SETUP}')
    const { spawn } = await import('node:child_process')
    await new Promise((ended) => spawn('true').once('exit', ended))
    spawn('sleep', ['1000'], { stdio: ['ignore', 'inherit', 'ignore'] }).once('spawn', () => console.log('started'))`
  const tests = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: ['ignore', 'pipe', 'inherit'] })
  expect(String((await once(tests.stdout, 'data'))[0])).toBe('started\n')
  tests.kill(signal)
  // Its output closes when the last process that has it ends.
  await once(tests, 'close')
})
