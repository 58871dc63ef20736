import { Command, Option } from 'commander'
import { type Call, queryText } from '../../client/call.ts'
import { counted, tokensInWords } from '../../core/accounts/in-words.ts'
import { chunksOf } from '../../core/chunks.ts'
import { type Micro, formatMicro, parseDecimal, toMicro, wholeTokens } from '../../core/pricing/amount.ts'
import {
  cloudReserveState,
  deviceList,
  type DeviceState,
  offlinePolicyState,
} from '../../protocol/edge/administration.ts'
import { enrollmentTokenRequest, enrollmentTokenResponse } from '../../protocol/edge/enrollment.ts'
import { labelsIn, labelsText } from '../../protocol/edge/labels.ts'
import { CodedError, firstProblem } from '../../protocol/errors.ts'
import { TOO_FINE, isTooFine } from '../../protocol/wire.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { durationBetween, labelArgument, readFileArgument } from '../arguments.ts'
import { collect } from '../collect.ts'
import { makePrivateDirectory } from '../atomic-write.ts'
import { instantText, jsonLine, table, writeLines } from '../lines.ts'
import { type ListFlags, widthFor, withListOptions } from '../lists.ts'
import { examples } from '../examples.ts'
import { DEVICES_PER_TOKEN, addDeviceCommands, shortState, unreportedTokens } from '../device-commands.ts'
import type { Io } from '../io.ts'
import type { Service } from '../nouns/service.ts'
import { everyOption, type Seen, watch } from '../watch.ts'
import { type ListedDevice, parseDeviceList, provision } from '../provisioning.ts'

interface EnrollmentFlags extends AdministratorFlags {
  readonly instance?: readonly string[]
  readonly name?: string
  readonly label?: readonly string[]
  readonly ttl?: number
}

interface ProvisionFlags extends AdministratorFlags {
  readonly out: string
  readonly ttl?: number
}

interface DeviceListFlags extends AdministratorFlags, ListFlags {
  readonly instance?: string
  readonly label?: readonly string[]
  readonly watch?: true
  readonly every: number
}

interface LineItemFlags extends AdministratorFlags {
  readonly instance?: string
  readonly lineItem: string
  readonly essential?: string
  readonly refuse?: true
  readonly tokens?: string
}

/** As the cloud accepts it. */
const enrollmentLifetime = durationBetween('1m', '366d')

export function command(io: Io): Command {
  const devices = new Command('devices').description('Manages devices in the cloud.')
  withAdministratorFlags(devices.command('enrollment-token'))
    .description('Creates an enrollment token for one device, and prints it.')
    .option(
      '--instance <name>',
      'instance that the device serves: its name or id; can be repeated (default: the only one)',
      collect((text) => text),
    )
    .option('--name <name>', 'suggested device name')
    .option('--label <key=value>', 'label of the device; can be repeated', collect(labelArgument))
    .option('--ttl <duration>', 'validity of the token (default: 24h)', enrollmentLifetime)
    .option('--json', 'print one JSON document')
    .action((flags: EnrollmentFlags) => printEnrollmentToken(flags, io))
  withAdministratorFlags(devices.command('provision'))
    .description(
      'Creates one-time tokens for a list of devices, for production lines. You can interrupt and repeat this command.',
    )
    .argument(
      '<list>',
      'CSV file with the columns name, instances (UUIDs separated by spaces) and optionally labels (key=value, separated by spaces)',
    )
    .requiredOption(
      '--out <directory>',
      'output directory; each token is written to NAME.token, readable only by its owner',
    )
    .option('--ttl <duration>', 'validity of each token (default: 24h)', enrollmentLifetime)
    .option('--json', 'print one JSON document per line for each device')
    .action((list: string, flags: ProvisionFlags) => provisionList(list, flags, io))
  const listed = withAdministratorFlags(devices.command('list'))
    .description('Lists the devices in order of enrollment.')
    .option('--instance <name>', 'only devices that serve this instance: its name or id')
    .option('--label <key=value>', 'only devices that have this label; can be repeated', collect(labelArgument))
  withListOptions(listed, 'print one JSON document per line for each device')
    .addOption(
      new Option('--watch', 'repeat: redraw on a terminal, otherwise print one line per change').conflicts('json'),
    )
    .addOption(everyOption('10s'))
    .action((flags: DeviceListFlags) =>
      flags.watch === true ? watch(() => look(flags, io), flags.every, io) : list(flags, io),
    )
  addLineItemCommands(devices, io)
  addDeviceCommands(devices, io)
  return examples(devices, [
    'tallygate devices enrollment-token --instance Workshop | install -m 600 /dev/stdin token',
    'tallygate devices list',
    'tallygate devices lock press-7',
    'tallygate devices label press-7 site=berlin line=3',
    'tallygate devices list --label site=berlin',
    'tallygate devices lock --label site=berlin --yes',
    'tallygate devices show press-7 --json',
    'tallygate devices cloud-reserve --instance Workshop --line-item ACT-1 --tokens 500',
  ])
}

function addLineItemCommands(devices: Command, io: Io): void {
  withAdministratorFlags(devices.command('offline-policy'))
    .description(
      'Sets or shows what devices do with a line item when their grant is used up and they cannot reach the cloud.',
    )
    .option('--instance <name>', 'instance that contains the line item: its name or id (default: the only one)')
    .requiredOption('--line-item <id>', 'activation id of the line item')
    .option('--essential <tokens>', 'keep granting, up to this many tokens above the grant of each device')
    .option('--refuse', 'refuse requests (default)')
    .option('--json', 'print one JSON document')
    .action((flags: LineItemFlags) => offlinePolicy(flags, io))
  withAdministratorFlags(devices.command('cloud-reserve'))
    .description(
      "Sets or shows how many tokens of a line item are reserved for the cloud's own clients in each period.",
    )
    .option('--instance <name>', 'instance that contains the line item: its name or id (default: the only one)')
    .requiredOption('--line-item <id>', 'activation id of the line item')
    .option('--tokens <tokens>', 'number of tokens that devices never receive; 0 reserves none')
    .option('--json', 'print one JSON document')
    .action((flags: LineItemFlags) => cloudReserve(flags, io))
}

async function offlinePolicy(flags: LineItemFlags, io: Io): Promise<void> {
  if (flags.essential !== undefined && flags.refuse === true) {
    throw new CodedError('USAGE', 'Give --essential or --refuse, not both.')
  }
  const overspendCap = tokensFrom(flags.essential, 1n, '--essential needs a number of tokens above 0.')
  const refusal = flags.refuse === true ? { policy: 'refuse' } : undefined
  const body = overspendCap === undefined ? refusal : { policy: 'essential', overspendCap: String(overspendCap) }
  using service = await administrator(flags, io)
  const state = await service.json(await lineItemCall('offline-policy', flags, service, body), offlinePolicyState)
  const devices = state.devices === 1 ? 'the only device' : `each of ${state.devices} devices`
  const each = `${tokensText(state.overspendCap)} above the grant on ${devices}`
  const plain =
    state.policy === 'refuse'
      ? 'refuse: devices spend only granted tokens'
      : `essential: ${each}; in total at most ${formatMicro(state.exposure)} above the pool`
  writeLines(io.stdout, [flags.json === true ? jsonLine(state) : plain])
}

async function cloudReserve(flags: LineItemFlags, io: Io): Promise<void> {
  const tokens = tokensFrom(flags.tokens, 0n, '--tokens needs a number of tokens, 0 or more.')
  const body = tokens === undefined ? undefined : { tokens: String(tokens) }
  using service = await administrator(flags, io)
  const state = await service.json(await lineItemCall('cloud-reserve', flags, service, body), cloudReserveState)
  const recalled = state.onDevices > 0n ? `, including ${formatMicro(state.onDevices)} still on devices` : ''
  const be = state.tokens === ONE_TOKEN ? 'is' : 'are'
  const plain = `${tokensText(state.tokens)} ${be} reserved for the cloud${recalled}`
  writeLines(io.stdout, [flags.json === true ? jsonLine(state) : plain])
}

const ONE_TOKEN = wholeTokens(1)

function tokensText(amount: Micro): string {
  return `${formatMicro(amount)} ${amount === ONE_TOKEN ? 'token' : 'tokens'}`
}

function tokensFrom(text: string | undefined, min: Micro, problem: string): Micro | undefined {
  if (text === undefined) return undefined
  const amount = parseDecimal(text)
  if (amount !== undefined && isTooFine(amount)) throw new CodedError('USAGE', `${text} ${TOO_FINE}.`)
  if (amount !== undefined && toMicro(amount) >= min) return toMicro(amount)
  throw new CodedError('USAGE', problem)
}

/** @param body absent: shows the setting */
async function lineItemCall(setting: string, flags: LineItemFlags, service: Service, body?: object): Promise<Call> {
  const instanceId = await service.instanceId(flags.instance)
  const lineItem = `/edge/api/v1/instances/${instanceId}/line-items/${encodeURIComponent(flags.lineItem)}`
  return { method: body === undefined ? 'GET' : 'PUT', path: `${lineItem}/${setting}`, body }
}

async function printEnrollmentToken(flags: EnrollmentFlags, io: Io): Promise<void> {
  using service = await administrator(flags, io)
  const instanceIds = await Promise.all((flags.instance ?? [undefined]).map((named) => service.instanceId(named)))
  const body = enrollmentTokenRequest.safeParse({
    instanceIds,
    ...(flags.name === undefined ? {} : { name: flags.name }),
    ...(flags.label === undefined ? {} : { labels: labelsIn(flags.label.join(' ')) }),
    ...(flags.ttl === undefined ? {} : { lifetimeMs: flags.ttl }),
  })
  if (!body.success) throw new CodedError('USAGE', firstProblem(body.error, 'enrollment'))
  const call = { method: 'POST', path: '/edge/api/v1/enrollment-tokens', body: body.data } as const
  const issued = await service.json(call, enrollmentTokenResponse)
  writeLines(io.stdout, [flags.json === true ? jsonLine(issued) : issued.token])
}

async function provisionList(path: string, flags: ProvisionFlags, io: Io): Promise<void> {
  const devices = parseDeviceList(readFileArgument(io, path, 'USAGE'))
  makePrivateDirectory(flags.out)
  const known = (await allDevices(flags, io)).filter(({ revokedAt }) => revokedAt === null)
  const enrolled = new Set(known.map(({ name }) => name ?? ''))
  const counts = { enrolled: 0, issued: 0, waiting: 0, failed: 0 }
  for (const some of chunksOf(devices, DEVICES_PER_TOKEN)) {
    using service = await administrator(flags, io)
    const issue = ({ name, instanceIds, labels }: ListedDevice) => {
      const body = { instanceIds, name, labels, ...(flags.ttl === undefined ? {} : { lifetimeMs: flags.ttl }) }
      return service.json({ method: 'POST', path: '/edge/api/v1/enrollment-tokens', body }, enrollmentTokenResponse)
    }
    const line = { directory: flags.out, enrolled, issue, now: io.now }
    for await (const device of provision(some, line)) {
      counts[device.state] += 1
      if (flags.json === true) writeLines(io.stdout, [jsonLine(device)])
      else if (device.state === 'failed') writeLines(io.stdout, [`${device.name}: ${device.problem}`])
    }
  }
  const { enrolled: done, issued, waiting, failed } = counts
  if (flags.json !== true) {
    io.stdout.write(
      `${counted(devices.length, 'device', 'devices')}: ${done} enrolled, ${counted(issued, 'token', 'tokens')} created, ${counted(waiting, 'token', 'tokens')} still valid, ${failed} failed\n`,
    )
  }
  if (failed > 0) io.exitWith(1)
}

async function list(flags: DeviceListFlags, io: Io): Promise<void> {
  const devices = await allDevices(flags, io)
  writeLines(io.stdout, flags.json === true ? devices.map(jsonLine) : tableOf(devices, widthFor(flags, io)))
}

/** An unreachable cloud is shown, not an error. */
async function look(flags: DeviceListFlags, io: Io): Promise<Seen> {
  try {
    const devices = await allDevices(flags, io)
    return { page: tableOf(devices, widthFor(flags, io)), lines: tableOf(devices) }
  } catch (error) {
    if (!(error instanceof CodedError) || error.code !== 'SERVICE_UNREACHABLE') throw error
    const lines = [`NO RESPONSE  ${error.message}`]
    return { page: lines, lines }
  }
}

async function allDevices(
  flags: Pick<DeviceListFlags, 'instance' | 'label'> & AdministratorFlags,
  io: Io,
): Promise<readonly DeviceState[]> {
  using service = await administrator(flags, io)
  const { instance, label } = flags
  const instanceId = instance === undefined ? undefined : await service.instanceId(instance)
  const devices: DeviceState[] = []
  let next = 0
  do {
    const query = queryText({ next, instanceId, labels: label?.join(',') })
    const page = await service.json({ method: 'GET', path: `/edge/api/v1/devices?${query}` }, deviceList)
    devices.push(...page.devices)
    next = page.next
  } while (next !== 0)
  return devices
}

function tableOf(devices: readonly DeviceState[], widthMax?: number): readonly string[] {
  const rows = devices.map((device) => [
    device.name ?? device.id,
    shortState(device),
    instantText(device.lastSyncAt).replace(/\.\d+Z$/, 'Z'),
    device.policies
      .map(({ applied, newest }) => (newest > applied ? `${applied} of ${newest}` : `${applied}`))
      .join(', '),
    String(device.backlog),
    tokensInWords(unreportedTokens(device)),
    device.presence === null ? '' : device.presence.online ? 'connected' : 'not connected',
    device.policies.map(({ instanceId, name }) => name ?? instanceId).join(', '),
    labelsText(device.labels),
    device.id,
  ])
  return table(HEAD, rows, 'No devices.', widthMax)
}

/** The first ones fit 80 characters. */
const HEAD = [
  ...['DEVICE', 'STATE', 'LAST SYNC', 'RULES', 'BACKLOG', 'OUTSTANDING'],
  ...['LIVE UPDATES', 'INSTANCES', 'LABELS', 'ID'],
]
