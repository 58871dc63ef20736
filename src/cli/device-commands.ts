/** The commands of `tallygate devices` that name a device, which follows at its next sync. */
import type { Command } from 'commander'
import { parseAccount } from '../core/accounts/account.ts'
import { accountInWords, counted, grouped, tokensInWords } from '../core/accounts/in-words.ts'
import { chunksOf } from '../core/chunks.ts'
import type { Micro } from '../core/pricing/amount.ts'
import { deviceState, type DeviceState, deviceSessionCommandResult } from '../protocol/edge/administration.ts'
import { labelsIn, labelsText, parseLabelKey } from '../protocol/edge/labels.ts'
import { CodedError } from '../protocol/errors.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from './administrator.ts'
import { labelArgument, uuidArgument } from './arguments.ts'
import { collect } from './collect.ts'
import { type ConfirmFlags, isConfirmed } from './confirm.ts'
import { columns, instantText, jsonLine, writeLines } from './lines.ts'
import { instanceInWords } from './local-agent.ts'
import type { Io } from './io.ts'
import { actionsOf } from './nouns/actions.ts'
import { valueText } from './nouns/noun.ts'
import type { Service } from './nouns/service.ts'

interface Flags extends AdministratorFlags, ConfirmFlags {
  readonly session?: string
  readonly label?: readonly string[]
  readonly remove?: readonly string[]
  readonly stopOnError?: true
}

const EDGE = '/edge/api/v1'

/** Of the commands that another command cannot undo. */
const CONSEQUENCES: Readonly<Record<string, (device: string) => string>> = {
  terminate: (device) => `Device ${device} grants no requests until it is enrolled again.`,
  revoke: (device) => `The key of device ${device} cannot be used again, and tokens on the device are not returned.`,
}

export function addDeviceCommands(devices: Command, io: Io): void {
  const named = (name: string, description: string, argument = '<device>'): Command =>
    withAdministratorFlags(devices.command(name))
      .description(description)
      .argument(argument, 'name or id of the device')
      .option('--json', 'print one JSON document')
  const withLabels = (name: string, description: string, path = name): Command =>
    named(name, description, '[device]')
      .option('--label <key=value>', 'all devices that have this label; can be repeated', collect(labelArgument))
      .option('--yes', `${Object.hasOwn(CONSEQUENCES, path) ? '' : 'with --label: '}do it without a question`)
      .option('--stop-on-error', 'with --label: stop at the first device that refuses')
      .action((device: string | undefined, flags: Flags) =>
        device === undefined ? commandAll(name, path, flags, io) : commandOne(device, path, flags, io),
      )
  const withSession = (name: string, description: string): Command =>
    withLabels(name, description).option('--session <uuid>', 'apply to this session of the device only', uuidArgument)

  named('show', 'Shows the state of a device, its outstanding tokens and its backlog.').action(
    (deviceId: string, flags: Flags) => show(deviceId, flags, io),
  )
  named('label', 'Sets or removes labels of a device, to find and command groups of devices.')
    .argument('[labels...]', 'labels to set, such as site=berlin')
    .option('--remove <key>', 'label to remove; can be repeated', collect(parseLabelKey))
    .action((device: string, set: readonly string[], flags: Flags) => label(device, set, flags, io))
  withSession('lock', 'Locks a device: it grants no requests until it is unlocked. It still delivers its backlog.')
  withSession('unlock', 'Unlocks a locked device.')
  withSession('terminate', 'Ends the service of a device until it enrolls again. It still delivers its backlog.')
  withLabels('drain', 'Asks a device to return its unused tokens.', 'release')
  withLabels('rotate-key', 'Asks a device to replace its key with a new key that it generates.')
  withLabels('revoke', "Revokes the device's key permanently. Tokens already granted to the device are not returned.")
}

async function show(named: string, flags: Flags, io: Io): Promise<void> {
  using service = await administrator(flags, io)
  const deviceId = await service.deviceId(named)
  const device = await service.json({ method: 'GET', path: `${EDGE}/devices/${deviceId}` }, deviceState)
  await print(device, flags, service, io)
}

async function label(named: string, set: readonly string[], flags: Flags, io: Io): Promise<void> {
  const body = { set: labelsIn(set.join(' ')), remove: flags.remove ?? [] }
  using service = await administrator(flags, io)
  const path = `${EDGE}/devices/${await service.deviceId(named)}`
  const isChange = set.length > 0 || body.remove.length > 0
  const call = isChange
    ? ({ method: 'POST', path: `${path}/labels`, body } as const)
    : ({ method: 'GET', path } as const)
  const device = await service.json(call, deviceState)
  const text = labelsText(device.labels)
  writeLines(io.stdout, [flags.json === true ? jsonLine(device) : text === '' ? 'No labels.' : text])
}

/** A token is valid for a few minutes only. */
export const DEVICES_PER_TOKEN = 100

interface CommandedDevice {
  readonly id: string
  readonly name: string
}

async function commandAll(name: string, path: string, flags: Flags, io: Io): Promise<void> {
  const devices = await devicesWithLabels(flags, io)
  if (!(await isConfirmed(`Found ${listText(devices)}.`, runText(name, devices.length), flags, io))) return
  let refused = 0
  let done = 0
  for (const some of chunksOf(devices, DEVICES_PER_TOKEN)) {
    using service = await administrator(flags, io)
    for (const device of some) {
      if (refused > 0 && flags.stopOnError === true) break
      const problem = await service
        .json({ method: 'POST', path: `${EDGE}/devices/${device.id}/${path}` }, deviceState)
        .then(() => null, refusalOf)
      if (problem === null) done += 1
      else refused += 1
      writeLines(io.stdout, [resultText(device, problem, flags)])
    }
  }
  const rest = devices.length - done - refused
  if (flags.json !== true) {
    writeLines(io.stdout, [`${done} done, ${refused} refused${rest > 0 ? `, ${rest} not tried` : ''}.`])
  }
  if (refused > 0) io.exitWith(1)
}

/** @throws CodedError USAGE, NOT_FOUND */
async function devicesWithLabels(flags: Flags, io: Io): Promise<readonly CommandedDevice[]> {
  const { label: labels, session } = flags
  if (labels === undefined || session !== undefined) throw new CodedError('USAGE', 'Name a device, or give --label.')
  using service = await administrator(flags, io)
  const devices = await service.devices(labels)
  if (devices.length === 0) {
    const message = `No device has ${labels.join(' and ')}.`
    throw new CodedError('NOT_FOUND', message, { details: { list: 'tallygate devices list' } })
  }
  return devices.map(({ id, name }) => ({ id: String(id), name: typeof name === 'string' ? name : String(id) }))
}

function listText(devices: readonly CommandedDevice[]): string {
  const shown = devices.slice(0, 10).map((device) => device.name)
  const rest = devices.length > shown.length ? ` and ${grouped(devices.length - shown.length)} more` : ''
  return `${shown.join(', ')}${rest}`
}

function runText(name: string, devices: number): string {
  return devices === 1 ? name : `${name} for these ${grouped(devices)}`
}

function resultText({ id, name }: CommandedDevice, problem: CodedError | null, flags: Pick<Flags, 'json'>): string {
  const { code, message } = problem ?? { code: null, message: null }
  if (flags.json === true) return jsonLine({ device: id, name, code, message })
  return `${name}  ${problem === null ? 'done' : `${code}: ${message}`}`
}

/** Refusals of one device. An unreachable cloud ends the command. */
function refusalOf(error: unknown): CodedError {
  if (error instanceof CodedError && (error.code === 'CONFLICT' || error.code === 'NOT_FOUND')) return error
  throw error
}

async function commandOne(named: string, what: string, flags: Flags, io: Io): Promise<void> {
  if (flags.label !== undefined) throw new CodedError('USAGE', 'Name a device or give --label, not both.')
  using service = await administrator(flags, io)
  const deviceId = await service.deviceId(named)
  const { session: sessionId } = flags
  const consequence = sessionId === undefined ? CONSEQUENCES[what] : undefined
  if (consequence !== undefined && !(await isConfirmed(consequence(named), what, flags, io))) return
  const device = `${EDGE}/devices/${deviceId}`
  if (sessionId === undefined) {
    await print(await service.json({ method: 'POST', path: `${device}/${what}` }, deviceState), flags, service, io)
    return
  }
  const answer = await service.json(
    { method: 'POST', path: `${device}/sessions/${sessionId}/${what}` },
    deviceSessionCommandResult,
  )
  if (flags.json === true) {
    writeLines(io.stdout, [jsonLine(answer)])
    return
  }
  const deviceText = named === deviceId ? deviceId : `${named} (${deviceId})`
  const text = {
    DONE: () => answer.state?.toLowerCase() ?? '',
    PENDING: () => `sent to device ${deviceText}, which keeps this session`,
    NOTED: async () =>
      noted(what, deviceText, (await service.json({ method: 'GET', path: device }, deviceState)).lastSyncAt),
  }
  writeLines(io.stdout, `session ${sessionId}: ${await text[answer.outcome]()}`.split('\n'))
}

function noted(what: string, device: string, lastSyncAt: number | null): string {
  const heard = lastSyncAt === null ? 'which has never synced' : `last contact ${new Date(lastSyncAt).toISOString()}`
  return [
    `not known to the cloud yet. The command to ${what} it is stored for device ${device}, ${heard}.`,
    'If the device has opened the session since, its next sync reports the session and receives the command.',
    'If it has no such session, nothing happens, and the command is deleted after 30 days.',
  ].join('\n  ')
}

async function print(device: DeviceState, { json }: Flags, service: Service, io: Io): Promise<void> {
  const lines = json === true ? [jsonLine(device)] : describe(device, await actionNamesById(service, device))
  writeLines(io.stdout, lines)
}

/** By the id of the action; none where the rules cannot be read. Two actions of a line item can have one name, so the id goes with it. */
async function actionNamesById(service: Service, { outstanding }: DeviceState): Promise<ReadonlyMap<string, string>> {
  const lineItems = new Map<string, Set<string>>()
  for (const { account } of outstanding) {
    const parsed = parseAccount(account)
    if (parsed?.kind !== 'action') continue
    lineItems.set(parsed.instanceId, (lineItems.get(parsed.instanceId) ?? new Set()).add(parsed.lineItemId))
  }
  const names = new Map<string, string>()
  for (const [instanceId, lineItemIds] of lineItems) {
    for (const { id, name, condition, conditionId } of await actionsOf(service, instanceId, lineItemIds)) {
      const known = [valueText(name), condition === conditionId ? '' : valueText(condition)].find((text) => text !== '')
      if (known !== undefined) names.set(valueText(id), `${known} (${valueText(id)})`)
    }
  }
  return names
}

function nameIn(names: ReadonlyMap<string, string>, account: string): string | undefined {
  const parsed = parseAccount(account)
  return parsed?.kind === 'action' ? names.get(parsed.actionId) : undefined
}

function describe(device: DeviceState, names: ReadonlyMap<string, string>): readonly string[] {
  const properties = columns([
    ['device', device.id],
    ['name', device.name ?? ''],
    ['state', stateOf(device)],
    ...(Object.keys(device.labels).length === 0 ? [] : [['labels', labelsText(device.labels)]]),
    ['key', keyText(device)],
    ['live updates', presenceText(device)],
    ['last sync', instantText(device.lastSyncAt)],
    ['software', device.software ?? 'unknown'],
    ['clock', clockText(device)],
    ['epoch', device.epoch === 0 ? 'never attached' : `${device.epoch}, ${device.status.toLowerCase()}`],
    ['backlog', `${counted(device.backlog, 'entry', 'entries')}, as of its last sync`],
    ...device.policies.map(({ applied, newest, ...instance }) => [
      'rules',
      `revision ${applied} of instance ${instanceInWords(instance)}${newest > applied ? `, newest: ${newest}` : ''}`,
    ]),
    ...(device.releaseRequested ? [['drain', 'return of unused tokens requested']] : []),
  ])
  const accounts = columns([
    ['OUTSTANDING', 'BILLED', 'ACCOUNT'],
    ...device.outstanding.map(({ account, unreported, billed }) => [
      tokensInWords(unreported),
      tokensInWords(billed),
      accountInWords(account, nameIn(names, account)),
    ]),
  ])
  return [...properties, ...(device.outstanding.length === 0 ? [] : ['', ...accounts])]
}

function stateOf(device: DeviceState): string {
  const { revokedAt, revokedBy, suspension, status } = device
  const by = (who: string | null, at: number): string =>
    `since ${new Date(at).toISOString()}${who === null ? '' : ` by ${who}`}`
  if (revokedAt !== null) return `revoked ${by(revokedBy, revokedAt)}`
  const now =
    suspension === null
      ? statusText(status)
      : `${suspension.state.toLowerCase()} ${by(suspension.by, suspension.since)}`
  return `${now}${marks(device)}`
}

export function shortState(device: DeviceState): string {
  const { revokedAt, suspension, status } = device
  if (revokedAt !== null) return 'revoked'
  return `${suspension === null ? statusText(status) : suspension.state.toLowerCase()}${marks(device)}`
}

function marks({ overdue, forked }: DeviceState): string {
  return `${overdue ? ', overdue' : ''}${forked ? ', copied' : ''}`
}

function statusText(status: DeviceState['status']): string {
  return status === 'NONE' ? 'never attached' : status.toLowerCase()
}

export function unreportedTokens({ outstanding }: DeviceState): Micro {
  return outstanding.reduce((sum: Micro, account) => sum + account.unreported, 0n)
}

function keyText({ key: { id, since, next, rotationRequested } }: DeviceState): string {
  const pending = rotationRequested ? ', replacement requested' : ''
  return `${id} since ${new Date(since).toISOString()}${next === null ? pending : `, next: ${next}`}`
}

function presenceText({ presence }: DeviceState): string {
  if (presence === null) return 'unknown'
  return `${presence.online ? 'connected' : 'not connected'} since ${new Date(presence.since).toISOString()}`
}

const CLOCK = {
  AGREES: 'agrees with the cloud',
  OPEN: 'agrees with the cloud, its latest possible time is unknown',
  AHEAD: 'is ahead of the cloud',
  BEHIND: 'is behind the cloud',
} as const

function clockText({ clock }: DeviceState): string {
  if (clock === null) return 'unknown'
  const seconds = (clock.offsetMs / 1_000).toFixed(3)
  return `${CLOCK[clock.comparison]} (${seconds} s off at ${new Date(clock.takenAt).toISOString()})`
}
