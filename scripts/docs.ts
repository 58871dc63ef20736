// `npm run docs`: writes the pages of the documentation that have their source in the code. A test fails when a page is
// not what this writes.
import { mkdir, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { parseArgs } from 'node:util'
import { format, resolveConfig } from 'prettier'
import { z } from 'zod'
import { CHECKS } from '../conformance/all-checks.ts'
import { STATEMENTS } from '../conformance/statements.ts'
import { agentOptions } from '../src/agent/settings.ts'
import { type EdgeDeps, edgeOperations } from '../src/cloud/http/edge/edge.ts'
import { apiDocuments } from '../src/cloud/http/openapi/documents.ts'
import type { Operation } from '../src/cloud/http/operation.ts'
import { type ServiceDeps, serviceOperations } from '../src/cloud/http/service/service.ts'
import { cloudOptions } from '../src/cloud/settings.ts'
import { type ErrorCode, ERRORS } from '../src/protocol/errors.ts'
import { ITEM_CHECKS, REFUSAL_REASONS, type RefusalReason } from '../src/core/rules/refusal-reasons.ts'
import { ITEM_STATUS } from '../src/protocol/service/status.ts'
import { deviceReport } from '../src/protocol/local/report.ts'
import type { Io } from '../src/cli/io.ts'
import { wholeProgram } from '../src/cli/program.ts'
import { softwareVersion } from '../src/platform/software-version.ts'
import { authorizationPage } from './authorization-page.ts'
import { configurationPage } from './configuration-page.ts'
import { localDocument } from './local-api.ts'
import { manPages } from './man-pages.ts'
import { orUsage } from './or-usage.ts'

/** Text of each generated page by its path, formatted as `npm run format` leaves it. */
export async function generatedPages(): Promise<ReadonlyMap<string, string>> {
  const pages = new Map([
    [
      'docs/reference/configuration.md',
      configurationPage([
        { command: 'tallygate agent', table: agentOptions },
        { command: 'tallygate cloud', table: cloudOptions },
      ]),
    ],
    ['docs/reference/errors.md', errorsPage()],
    ['docs/reference/conformance.md', conformancePage()],
    ['docs/reference/authorization.md', authorizationPage(servedOperations())],
  ])
  pages.set('docs/reference/device-report.schema.json', JSON.stringify(z.toJSONSchema(deviceReport, { io: 'input' })))
  for (const [name, document] of apiDocuments(servedOperations(), { prefix, errorsUrl: '../errors.md' })) {
    pages.set(`docs/reference/openapi/${name}.json`, JSON.stringify(document))
  }
  pages.set('docs/reference/openapi/local.json', JSON.stringify(localDocument('../errors.md')))
  const program = await wholeProgram(NO_WORLD)
  for (const [name, text] of manPages(program, softwareVersion(), { agent: agentOptions, cloud: cloudOptions })) {
    pages.set(`docs/reference/man/${name}`, text)
  }
  for (const [path, text] of pages) {
    if (!/\.(md|json)$/.test(path)) continue
    pages.set(path, await format(text, { ...(await resolveConfig(path)), filepath: path }))
  }
  return pages
}

const nothing = { write: () => undefined }

/** Commands are made and not run. */
const NO_WORLD: Io = {
  stdout: nothing,
  stderr: nothing,
  env: {},
  now: () => 0,
  readText: () => '',
  stop: () => new AbortController().signal,
  exitWith: () => undefined,
  ask: () => null,
  onHangup: () => undefined,
}

const prefix = cloudOptions.options.http.prefix.default

/** The cloud's operations. Describing one uses none of its dependencies. */
export function servedOperations(): readonly Operation[] {
  const unasked = new Proxy({}, { get: () => undefined })
  return [...serviceOperations(unasked as ServiceDeps), ...edgeOperations(unasked as EdgeDeps)]
}

const RETRY = {
  no: 'no',
  later: 'later',
  online: 'once the device has reached the cloud',
}

const ITEM_RETRY = { NEVER: 'no', LATER: 'later', ONLINE: RETRY.online } as const

/** A table ends a cell at a vertical bar, also in code. */
const cell = (text: string): string => text.replaceAll('|', String.raw`\|`)

function errorsPage(): string {
  const rows = (Object.keys(ERRORS) as ErrorCode[]).sort().map((code) => {
    const { meaning, remedy, http, exit, retry } = ERRORS[code]
    return `| \`${code}\` | ${cell(meaning)} | ${cell(remedy)} | ${RETRY[retry]} | ${http} | ${exit} |`
  })
  const reasons = (Object.keys(REFUSAL_REASONS) as RefusalReason[]).map((reason) => {
    const { check, retry } = REFUSAL_REASONS[reason]
    const codes = ITEM_STATUS[reason]
    return `| \`${reason}\` | \`${codes['v1.0']}\` | \`${codes['v1.1']}\` | ${ITEM_CHECKS[check]} | ${ITEM_RETRY[retry]} |`
  })
  return `# Error codes

This page is generated from \`src/protocol/errors.ts\` (\`npm run docs\`).

Every error has one of these codes:

- HTTP responses of the agent and the cloud contain \`{"message": ..., "code": ...}\`, unless the service API defines another body.
- Commands print one line on stderr, \`tallygate: CODE: cause. remedy\`, and exit with the code in the last column.
- \`tallygate status\` shows health conditions with their code.

A code keeps its meaning once it is released. *Retry* says whether the same call can be sent again unchanged. Refusals of access are not
errors: each requested item has a status, see [refused items](#refused-items).

| Code | What happened | What to do | Retry | HTTP | Exit |
| --- | --- | --- | --- | --- | --- |
${rows.join('\n')}

## Refused items

Each item of an access request is granted or refused by itself. The first check that fails gives the reason. This table is generated from
\`src/core/rules/refusal-reasons.ts\`; [a decision](../decisions/item-status-codes.md) says where the codes come from.

| Reason | v1.0 | v1.1 | Check that failed | Retry |
| --- | --- | --- | --- | --- |
${reasons.join('\n')}
`
}

function conformancePage(): string {
  const table = (document: 'interface' | 'documentation'): string => {
    const rows = [...STATEMENTS]
      .filter(([, statement]) => statement.document === document)
      .map(([id, { place, says, notShown }]) => {
        const checks = CHECKS.filter(({ shows }) => shows.includes(id))
        const shown = checks.map(({ name, versions, needs = [] }) => {
          const only = [...(versions ?? []), ...needs]
          return `${name}${only.length === 0 ? '' : ` (${only.join(', ')})`}`
        })
        const cell = shown.length === 0 ? `*not shown: ${notShown ?? ''}*` : shown.join('<br>')
        return `| ${place} | ${says} | ${cell.replaceAll('|', '\\|')} |`
      })
    return ['| Where | Statement | Checks |', '| --- | --- | --- |', ...rows].join('\n')
  }
  return `# Conformance

This page is generated from \`conformance/\` (\`npm run docs\`).

\`\`\`sh
npm run conformance -- --url http://127.0.0.1:7080/dynamicmonetization --admin-key administration-key.pem
\`\`\`

This command checks over HTTP whether the server at a URL (prefix included) follows the service's interface, in both versions. The suite
imports no code of the cloud. The name of each check contains the place of its statement. The report has one line for each check: it passed,
it failed and why, or it was not shown and what it needs. \`--json\` and \`--junit <file>\` write reports for programs; \`--only <words>\` and
\`--version\` run a part of the suite. The exit code is 1 if a check failed, and 2 if no check could run.

- **A clock.** Charges, heartbeats and ends of sessions take hours. With \`--clock <url>\` the suite moves time: it sends
  \`POST {"advanceMs": n}\` to that URL. The clock responds with \`{"now": <POSIX ms>}\` once the server has done everything that was due.
  Without a clock, those checks are not shown.
- **A server for tests.** All customers of a server share rate tables without series and configuration values. Checks that change them run
  only with \`--scratch\`, and restore configuration values. One check deletes all other administration keys and saves them again.
- **Operations of this project.** The service's documentation describes consumption limits, variables of formulas, usage rows and locked
  sessions, but not their operations and fields. With \`--extensions\` the suite checks this project's operations for them.
- **Data that stays on the server.** Names are random, so several runs can share a server. The suite deletes line items, sessions, keys and
  future rate tables. The interface cannot delete instances or rate tables in effect.
- **Where the interface is silent** (success codes, wording), every choice passes. [Decisions](../decisions/) lists the choices of this
  project, which its other tests check.

\`test/conformance\` runs the suite against the cloud on SQLite and on PostgreSQL, and against a cloud with faults, which the suite detects. A
test checks that every statement below has a check, or a reason why no check can show it.

## The service's interface

${table('interface')}

## The service's public documentation

${table('documentation')}
`
}

if (import.meta.main) {
  orUsage('npm run docs\n\nWrites the pages of the documentation that come from the code. Takes no arguments.\n', () =>
    parseArgs(),
  )
  for (const [path, text] of await generatedPages()) {
    await mkdir(dirname(path), { recursive: true })
    await writeFile(path, text)
  }
}
