/** Lists the audit of the cloud. */
import { Command, InvalidArgumentError } from 'commander'
import { auditList } from '../../protocol/edge/administration.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { uuidArgument } from '../arguments.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { columns, jsonLine, writeLines } from '../lines.ts'

interface AuditFlags extends AdministratorFlags {
  readonly device?: string
  readonly instance?: string
  readonly limit: number
  readonly json?: true
}

/** The cloud's maximum page size. */
const AUDIT_MAX = 1_000

export function command(io: Io): Command {
  const audit = withAdministratorFlags(new Command('audit'))
    .description(
      'Lists who changed what in the cloud, newest first: rules, line items, rate tables, keys, configuration, devices and sessions.',
    )
    .option('--instance <uuid>', 'only records about objects of this instance', uuidArgument)
    .option('--device <uuid>', 'only records of this device', uuidArgument)
    .option('--limit <n>', 'maximum number of records', limitArgument, 100)
    .option('--json', 'print one JSON document per line')
    .action((flags: AuditFlags) => list(flags, io))
  return examples(audit, [
    'CLOUD=(--url https://cloud.example/dynamicmonetization --admin-key administration-key.pem)',
    'tallygate audit "${CLOUD[@]}" --limit 10',
    'tallygate audit "${CLOUD[@]}" --instance 64d2028c-ae87-4069-a624-66089d957ef9 --json',
  ])
}

async function list(flags: AuditFlags, io: Io): Promise<void> {
  using client = await administrator(flags, io)
  const query = new URLSearchParams({ size: String(flags.limit) })
  if (flags.device !== undefined) query.set('deviceId', flags.device)
  if (flags.instance !== undefined) query.set('instanceId', flags.instance)
  const path = `/edge/api/v1/audit?${query.toString()}`
  const { records } = await client.json({ method: 'GET', path }, auditList)
  const rows = records.map(({ at, by, action, ...object }) => [
    new Date(at).toISOString(),
    by.kind.toLowerCase(),
    by.name ?? by.keyId ?? '',
    action.toLowerCase().replaceAll('_', ' '),
    objectText(object),
    object.detail ?? '',
  ])
  const table = columns([['AT', 'BY', 'NAME', 'CHANGE', 'OBJECT', 'DETAIL'], ...rows])
  writeLines(io.stdout, flags.json === true ? records.map(jsonLine) : table)
}

/** `instance 64d2… line item ACT-1` */
function objectText(ids: {
  readonly instanceId: string | null
  readonly lineItemId: string | null
  readonly deviceId: string | null
  readonly sessionId: string | null
}): string {
  return [
    ['instance', ids.instanceId],
    ['line item', ids.lineItemId],
    ['device', ids.deviceId],
    ['session', ids.sessionId],
  ]
    .flatMap(([noun, id]) => (id === null ? [] : [`${noun} ${id}`]))
    .join(' ')
}

function limitArgument(text: string): number {
  const n = Number(text)
  if (Number.isInteger(n) && n >= 1 && n <= AUDIT_MAX) return n
  throw new InvalidArgumentError(`Use a whole number from 1 to ${AUDIT_MAX}.`)
}
