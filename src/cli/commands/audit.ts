import { Command, InvalidArgumentError } from 'commander'
import type { z } from 'zod'
import { queryText } from '../../client/call.ts'
import { detailInWords } from '../../protocol/edge/audit-detail.ts'
import { AUDITED_ACTIONS, auditList } from '../../protocol/edge/administration.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { requireRange, timeArgument, wholeNumberArgument } from '../arguments.ts'
import { examples } from '../examples.ts'
import { namesFor } from '../nouns/command.ts'
import type { Names } from '../nouns/noun.ts'
import type { Io } from '../io.ts'
import { callerText } from '../sign-in/caller.ts'
import { jsonLine, table, writeLines } from '../lines.ts'
import { type ListFlags, widthFor, withListOptions } from '../lists.ts'

interface AuditFlags extends AdministratorFlags, ListFlags {
  readonly device?: string
  readonly instance?: string
  readonly by?: string
  readonly action?: string
  readonly since?: number
  readonly until?: number
  readonly sessions?: true
  readonly before?: number
  readonly limit: number
}

/** The cloud's maximum page size. */
const PAGE_MAX = 1_000
const LIMIT_MAX = 1_000_000

export function command(io: Io): Command {
  const audit = new Command('audit').description('Lists who changed what in the cloud.')
  const listed = withAdministratorFlags(audit.command('list'))
    .description(
      'Lists who changed what in the cloud, newest first: rules, line items, rate tables, keys, configuration, devices and sessions.',
    )
    .option('--instance <name>', 'only records about this instance, its devices and their enrollment: its name or id')
    .option('--device <name>', 'only records of this device: its name or id')
    .option('--by <name>', 'only changes by the key or device with this name, or by this key id')
    .option('--action <action>', 'only this change, such as lock-device', actionArgument)
    .option('--since <time>', 'only changes at or after this time, such as 2026-05-01T08:00Z', timeArgument)
    .option('--until <time>', 'only changes before this time', timeArgument)
    .option('--sessions', 'also sessions that clients and devices open and close')
    .option('--limit <n>', 'maximum number of records', wholeNumberArgument(1, LIMIT_MAX), 100)
    .option('--before <cursor>', 'only records before those of the list that printed this cursor', cursorArgument)
  withListOptions(listed).action((flags: AuditFlags) => list(flags, io))
  return examples(audit, [
    'tallygate audit list --limit 10',
    'tallygate audit list --device press-7 --json',
    'tallygate audit list --by Ada --action lock-device --since 2026-05-01',
  ])
}

async function list(flags: AuditFlags, io: Io): Promise<void> {
  requireRange(flags)
  using service = await administrator(flags, io)
  const { by, action, since, until, sessions, before } = flags
  const instanceId = flags.instance === undefined ? undefined : await service.instanceId(flags.instance)
  const deviceId = flags.device === undefined ? undefined : await service.deviceId(flags.device)
  const filter = { deviceId, instanceId, by, action, since, until, sessions }
  const records: AuditRow[] = []
  let next: string | null = before === undefined ? null : String(before)
  do {
    const size = Math.min(PAGE_MAX, flags.limit - records.length)
    const query = queryText({ ...filter, size, before: next })
    const page = await service.json({ method: 'GET', path: `/edge/api/v1/audit?${query}` }, auditList)
    records.push(...page.records)
    next = page.next
  } while (next !== null && records.length < flags.limit)
  const named = flags.json === true ? [] : records.flatMap(namedIn)
  const names = await namesFor(new Set(named), service)
  const rows = records.map(({ at, by: actor, action: change, ...object }) => [
    new Date(at).toISOString(),
    actorText(actor),
    change.toLowerCase().replaceAll('_', ' '),
    objectText(object, names),
    actor.kind.toLowerCase(),
    object.detail === null ? '' : detailInWords(object.detail),
  ])
  const lines = table(['AT', 'BY', 'CHANGE', 'OBJECT', 'CALLER', 'DETAIL'], rows, 'No records.', widthFor(flags, io))
  writeLines(io.stdout, flags.json === true ? records.map(jsonLine) : lines)
  if (next !== null) io.stderr.write(`There are more records: repeat the command with --before ${next}\n`)
}

/** The lists that have the names of its objects. */
function namedIn({ instanceId, deviceId }: AuditRow): readonly ('instances' | 'devices')[] {
  return [
    ...(instanceId === null ? [] : (['instances'] as const)),
    ...(deviceId === null ? [] : (['devices'] as const)),
  ]
}

type AuditRow = z.infer<typeof auditList>['records'][number]

/** People can choose their names, so the subject goes with them. */
function actorText({ name, keyId, issuer }: AuditRow['by']): string {
  return issuer === null ? (name ?? keyId ?? '') : callerText({ name, keyId: keyId ?? '', issuer })
}

function objectText(
  ids: {
    readonly instanceId: string | null
    readonly lineItemId: string | null
    readonly deviceId: string | null
    readonly sessionId: string | null
  },
  names: Names,
): string {
  const objects = [
    ['instance', ids.instanceId],
    ['line item', ids.lineItemId],
    ['device', ids.deviceId],
    ['session', ids.sessionId],
  ] as const
  return objects.flatMap(([noun, id]) => (id === null ? [] : [`${noun} ${names.get(id) ?? id}`])).join(' ')
}

/** No cloud has so many records: it is a time in POSIX milliseconds. */
const CURSOR_MAX = 99_999_999_999

function cursorArgument(text: string): number {
  const number = /^\d{1,15}$/.test(text) ? Number(text) : 0
  if (number > 0 && number <= CURSOR_MAX) return number
  throw new InvalidArgumentError('Use the cursor that a list printed. --until selects by time.')
}

function actionArgument(text: string): string {
  const name = text.toUpperCase().replaceAll(/[ -]/g, '_')
  const action = AUDITED_ACTIONS.find((each) => each === name)
  if (action !== undefined) return action
  const known = AUDITED_ACTIONS.map((each) => each.toLowerCase().replaceAll('_', '-'))
  throw new InvalidArgumentError(`Use one of ${known.join(', ')}.`)
}
