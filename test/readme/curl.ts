// What the README's shell lines need of curl, for a machine that has none: -s -f -X -H -d --unix-socket and one URL.
import { request } from 'node:http'
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
  },
})
const headers = Object.fromEntries((values.header ?? []).map((line) => line.split(/:\s*/, 2) as [string, string]))
const socketPath = values['unix-socket']
const method = values.request ?? (values.data === undefined ? 'GET' : 'POST')
const call = request(
  positionals[0] ?? '',
  { method, headers, ...(socketPath === undefined ? {} : { socketPath }) },
  (response) => {
    const isFailure = values.fail === true && (response.statusCode ?? 0) >= 400
    if (isFailure) process.exitCode = 22
    else response.pipe(process.stdout)
  },
)
call.on('error', () => (process.exitCode = 7))
call.end(values.data)
