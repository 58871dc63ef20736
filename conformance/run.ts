// `npm run conformance -- --url http://host:port/prefix --admin-key file`: does the server at this address keep what the
// service's interface says? Exit code 0 when every check passed, 1 when one failed, 2 when no check could run.
import { readFileSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { json, junit, line, summary } from './report.ts'
import { runChecks } from './runner.ts'
import { VERSIONS, type Version } from './version.ts'

const USAGE = `npm run conformance -- --url <address with prefix> --admin-key <file>
  --admin-kid <id>     id of the key (default: its RFC 7638 thumbprint)
  --clock <url>        test clock of the server: takes POST {"advanceMs": n}, answers {"now": POSIX ms}
  --scratch            the server is for tests: checks may change what all of its customers share
  --extensions         the server has the operations that are Tallygate's own: usage export, consumption limits, locks
  --keep               leave line items and sessions behind, to look at them
  --version <version>  v1.0 or v1.1 (default: both)
  --only <words>       only checks whose name has these words
  --json               the results as JSON on stdout
  --junit <file>       the results as JUnit XML in a file
`

class UsageError extends Error {}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      url: { type: 'string' },
      'admin-key': { type: 'string' },
      'admin-kid': { type: 'string' },
      clock: { type: 'string' },
      scratch: { type: 'boolean' },
      extensions: { type: 'boolean' },
      keep: { type: 'boolean' },
      version: { type: 'string' },
      only: { type: 'string' },
      json: { type: 'boolean' },
      junit: { type: 'string' },
      help: { type: 'boolean' },
    },
  })
  if (values.help === true) {
    process.stdout.write(USAGE)
    return 0
  }
  const { url, 'admin-key': keyFile, 'admin-kid': adminKeyId, clock, version, only } = values
  if (url === undefined || keyFile === undefined) throw new UsageError('--url and --admin-key are needed')
  const isJson = values.json === true
  const results = await runChecks(
    {
      url: url.replace(/\/+$/, ''),
      adminKey: readFileSync(keyFile, 'utf8'),
      ...(adminKeyId === undefined ? {} : { adminKeyId }),
      ...(clock === undefined ? {} : { clock }),
    },
    {
      scratch: values.scratch === true,
      extensions: values.extensions === true,
      keep: values.keep === true,
      ...(version === undefined ? {} : { versions: [versionOf(version)] }),
      ...(only === undefined ? {} : { only }),
      onResult: (result) => {
        if (!isJson) process.stdout.write(`${line(result)}\n`)
      },
    },
  )
  if (results.length === 0) throw new UsageError('no check has such a name')
  if (values.junit !== undefined) writeFileSync(values.junit, junit(results))
  process.stdout.write(isJson ? `${json(results)}\n` : `${summary(results)}\n`)
  return results.some(({ outcome }) => outcome === 'failed') ? 1 : 0
}

function versionOf(text: string): Version {
  const version = VERSIONS.find((known) => known === text)
  if (version === undefined) throw new UsageError(`--version is ${VERSIONS.join(' or ')}`)
  return version
}

try {
  process.exitCode = await main()
} catch (error) {
  process.stderr.write(`conformance: ${error instanceof Error ? error.message : String(error)}\n`)
  if (error instanceof UsageError) process.stderr.write(USAGE)
  process.exitCode = 2
}
