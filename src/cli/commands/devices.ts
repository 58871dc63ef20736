/** `tallygate devices`: what an administrator does about devices, over the twin's edge area. */
import { Command } from 'commander'
import { formatMicro, type Micro } from '../../core/amount.ts'
import { deviceList, type DeviceState } from '../../protocol/edge/administration.ts'
import { enrollmentTokenRequest, enrollmentTokenResponse } from '../../protocol/edge/enrollment.ts'
import { CodedError, firstProblem } from '../../protocol/errors.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { collect, durationArgument, uuidArgument } from '../arguments.ts'
import { columns } from '../columns.ts'
import type { Io } from '../io.ts'
import { jsonLine } from '../json-line.ts'

interface EnrollmentFlags extends AdministratorFlags {
  readonly instance: readonly string[]
  readonly name?: string
  readonly ttl?: number
}

interface ListFlags extends AdministratorFlags {
  readonly instance?: string
  readonly json?: true
}

export function command(io: Io): Command {
  const devices = new Command('devices').description('What an administrator does about devices.')
  withAdministratorFlags(devices.command('enrollment-token'))
    .description('Has the twin make a token with which one device can enroll, and prints it.')
    .requiredOption('--instance <uuid>', 'instance that the device shall serve; may be repeated', collect(uuidArgument))
    .option('--name <name>', 'suggested name of the device')
    .option('--ttl <duration>', 'how long the token can be used (default: 24h)', durationArgument)
    .action((flags: EnrollmentFlags) => printEnrollmentToken(flags, io))
  withAdministratorFlags(devices.command('list'))
    .description('Lists the devices, in the order of enrollment.')
    .option('--instance <uuid>', 'only those that serve this instance', uuidArgument)
    .option('--json', 'for programs: one JSON document for each device and line')
    .action((flags: ListFlags) => list(flags, io))
  return devices
}

async function printEnrollmentToken(flags: EnrollmentFlags, io: Io): Promise<void> {
  const body = enrollmentTokenRequest.safeParse({
    instanceIds: flags.instance,
    ...(flags.name === undefined ? {} : { name: flags.name }),
    ...(flags.ttl === undefined ? {} : { lifetimeMs: flags.ttl }),
  })
  if (!body.success) throw new CodedError('USAGE', firstProblem(body.error, 'enrollment'))
  using client = await administrator(flags, io)
  const call = { method: 'POST', path: '/edge/api/v1/enrollment-tokens', body: body.data } as const
  const { token } = await client.json(call, enrollmentTokenResponse)
  io.stdout.write(`${token}\n`)
}

async function list(flags: ListFlags, io: Io): Promise<void> {
  using client = await administrator(flags, io)
  const devices: DeviceState[] = []
  let next = 0
  do {
    const query = new URLSearchParams({ next: String(next) })
    if (flags.instance !== undefined) query.set('instanceId', flags.instance)
    const page = await client.json({ method: 'GET', path: `/edge/api/v1/devices?${query.toString()}` }, deviceList)
    devices.push(...page.devices)
    next = page.next
  } while (next !== 0)
  const lines = flags.json === true ? devices.map(jsonLine) : table(devices)
  io.stdout.write(lines.map((line) => `${line}\n`).join(''))
}

function table(devices: readonly DeviceState[]): readonly string[] {
  if (devices.length === 0) return ['There are no devices.']
  return columns([
    ['DEVICE', 'NAME', 'STATE', 'LAST SYNC', 'BACKLOG', 'UNREPORTED'],
    ...devices.map((device) => [
      device.id,
      device.name ?? '',
      stateOf(device),
      device.lastSyncAt === null ? 'never' : new Date(device.lastSyncAt).toISOString(),
      String(device.backlog),
      formatMicro(device.outstanding.reduce((sum: Micro, { unreported }) => sum + unreported, 0n)),
    ]),
  ])
}

function stateOf({ revokedAt, forked, status }: DeviceState): string {
  if (revokedAt !== null) return 'revoked'
  return forked ? `${status.toLowerCase()}, copied` : status.toLowerCase()
}
