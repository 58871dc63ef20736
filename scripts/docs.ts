// `npm run docs`: writes the pages of the documentation that have their source in the code. A test fails when a page is
// not what this writes.
import { writeFile } from 'node:fs/promises'
import { format, resolveConfig } from 'prettier'
import { agentOptions } from '../src/agent/settings.ts'
import { cloudOptions } from '../src/cloud/settings.ts'
import { type ErrorCode, ERRORS } from '../src/protocol/errors.ts'
import { configurationPage } from '../src/settings/pages.ts'

/** Text of each generated page by its path, formatted as `npm run format` leaves it. */
export async function generatedPages(): Promise<ReadonlyMap<string, string>> {
  const pages = new Map([
    [
      'docs/configuration.md',
      configurationPage([
        { command: 'tallygate agent', table: agentOptions },
        { command: 'tallygate cloud', table: cloudOptions },
      ]),
    ],
    ['docs/errors.md', errorsPage()],
  ])
  for (const [path, text] of pages) {
    pages.set(path, await format(text, { ...(await resolveConfig(path)), filepath: path }))
  }
  return pages
}

const RETRY = {
  no: 'no',
  later: 'later',
  online: 'once the device has reached the cloud',
}

function errorsPage(): string {
  const rows = (Object.keys(ERRORS) as ErrorCode[]).sort().map((code) => {
    const { meaning, remedy, http, retry, ...entry } = ERRORS[code]
    const exit = 'exit' in entry ? entry.exit : 1
    return `| \`${code}\` | ${meaning} | ${remedy} | ${RETRY[retry]} | ${http} | ${exit} |`
  })
  return `# Error codes

This page is generated from \`src/protocol/errors.ts\` (\`npm run docs\`).

Every error that a user may see carries one of these codes: HTTP answers of twin and agent as \`{"message": ..., "code": ...}\`
(where the service API does not give the body another shape), commands as one line on stderr, \`tallygate: CODE: what is wrong.
what to do\`, and their exit code, health conditions in \`tallygate status\`. A code keeps its meaning once it is shipped.

*Again* says whether the same call may be sent again unchanged. Refusals of access are not errors: they are answers with a
status of their own, see [item status codes](decisions/item-status-codes.md).

| Code | What happened | What to do | Again | HTTP | Exit |
| --- | --- | --- | --- | --- | --- |
${rows.join('\n')}
`
}

if (import.meta.main) {
  for (const [path, text] of await generatedPages()) await writeFile(path, text)
}
