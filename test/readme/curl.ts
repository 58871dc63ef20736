// What the README's shell lines need of curl, for a machine that has none: -s -f -X -H -d --unix-socket --retry and one URL.
import { request } from 'node:http'
import { setTimeout as pause } from 'node:timers/promises'
import { parseArgs } from 'node:util'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    silent: { type: 'boolean', short: 's' },
    fail: { type: 'boolean', short: 'f' },
    request: { type: 'string', short: 'X' },
    header: { type: 'string', short: 'H', multiple: true },
    data: { type: 'string', short: 'd' },
    'unix-socket': { type: 'string' },
    retry: { type: 'string', default: '0' },
    'retry-delay': { type: 'string', default: '1' },
    'retry-connrefused': { type: 'boolean' },
  },
})
const headers = Object.fromEntries((values.header ?? []).map((line) => line.split(/:\s*/, 2) as [string, string]))
const socketPath = values['unix-socket']
const method = values.request ?? (values.data === undefined ? 'GET' : 'POST')
const exitCode = (): Promise<number> =>
  new Promise((resolve) => {
    const call = request(
      positionals[0] ?? '',
      { method, headers, ...(socketPath === undefined ? {} : { socketPath }) },
      (response) => {
        if (values.fail === true && (response.statusCode ?? 0) >= 400) resolve(22)
        else response.pipe(process.stdout).on('unpipe', () => resolve(0))
      },
    )
    call.on('error', () => resolve(7))
    call.end(values.data)
  })

process.exitCode = await exitCode()
for (let left = Number(values.retry); left > 0 && process.exitCode !== 0; left -= 1) {
  await pause(Number(values['retry-delay']) * 1_000)
  process.exitCode = await exitCode()
}
