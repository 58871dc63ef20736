import { counted, grouped } from '../../core/accounts/in-words.ts'
import { Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { CodedError, remedyAfter } from '../../protocol/errors.ts'
import type { DeviceCommandName } from '../devices/command-device.ts'
import { scopeWith } from '../service-api/principal.ts'
import type { Device } from '../storage/device-records.ts'
import { Inputs } from './inputs.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  confirmation,
  documentOf,
  formTokenField,
  headerOf,
  hrefOf,
  requireReadable,
} from './page.ts'
import { type DeviceChoice, deviceFilterOf } from './device-filter.ts'
import { deviceNames } from './device-names.ts'

/** Devices of one command. Their ids fit in a form. */
const COMMANDED_MAX = 1_000

const DEVICE_COMMAND_TEXT: Readonly<Record<DeviceCommandName, { readonly verb: string; readonly effect: string }>> = {
  lock: {
    verb: 'Lock',
    effect: 'A locked device grants no requests until it is unlocked. Its sessions are locked too.',
  },
  unlock: { verb: 'Unlock', effect: 'An unlocked device grants requests again.' },
  release: { verb: 'Drain', effect: 'A device returns its unused tokens with its next sync.' },
  'rotate-key': { verb: 'Replace key', effect: 'A device makes a new key with its next sync.' },
  terminate: { verb: 'End service', effect: 'A device grants no requests until it enrolls again.' },
  revoke: {
    verb: 'Revoke key',
    effect: 'This is permanent. Tokens on a device stay reserved, because the device may still spend them.',
  },
}

const COMMANDS = Object.keys(DEVICE_COMMAND_TEXT) as readonly DeviceCommandName[]

export function commandOf(name = ''): DeviceCommandName {
  const found = COMMANDS.find((each) => each === name)
  if (found === undefined) throw new CodedError('NOT_FOUND', `There is no command ${name} for devices.`)
  return found
}

/** With the role operator in all of these instances. @param instanceIds default: in any instance */
export function mayCommand({ administrator }: Pick<View, 'administrator'>, instanceIds?: readonly string[]): boolean {
  const scope = scopeWith(administrator.rights, 'operator')
  if (scope === null) return true
  return instanceIds === undefined ? scope.size > 0 : instanceIds.every((id) => scope.has(id.toLowerCase()))
}

export function commandChoice(view: View, { search, contact, labels }: DeviceChoice): Html {
  const inputs = new Inputs({ instance: view.instance?.id ?? '', search, contact: contact ?? '', labels })
  const given = ['instance', 'search', 'contact', 'labels'].filter((name) => inputs.value(name) !== '')
  return html`<div class="filter">
    ${given.map((name) => inputs.hidden(name))}
    ${inputs.select(
      { name: 'command', label: 'Command' },
      COMMANDS.map((name) => [name, DEVICE_COMMAND_TEXT[name].verb]),
    )}
    <button name="of" value="selected">Continue with the selected devices</button>
    <button name="of" value="all">Continue with all that this list finds</button>
  </div>`
}

/** The commands that are possible in its state, as rows of its page. */
export function commandRows(
  view: View,
  { id, revokedAt, suspension }: Pick<Device, 'id' | 'revokedAt' | 'suspension'>,
): readonly (readonly [name: string, links: Html])[] {
  if (revokedAt !== null) return []
  const without =
    suspension === null ? ['unlock'] : suspension.state === 'LOCKED' ? ['lock'] : ['lock', 'unlock', 'terminate']
  const links = COMMANDS.filter((command) => !without.includes(command)).map(
    (command) =>
      html`<a href="${hrefOf(view, '/devices/command', { command, device: id })}"
        >${DEVICE_COMMAND_TEXT[command].verb}</a
      > `,
  )
  return [['Commands', html`<span class="filter">${links}</span>`]]
}

export async function confirmCommandPage(view: View): Promise<Page> {
  const command = commandOf(view.query['command'])
  const { verb, effect } = DEVICE_COMMAND_TEXT[command]
  const { devices, isMore } = await chosenDevices(view)
  const which = devicesInWords(devices)
  const back = html`<a href="${hrefOf(view, '/devices')}">Back to the devices</a>`
  if (devices.length === 0) {
    const none = html`<p>Select devices in the list first. ${back}</p>`
    return { title: `${verb}: no devices`, content: section('confirm', 'No device is selected', none) }
  }
  const rest = devices.length - ROWS_SHOWN
  return {
    title: `${verb}: ${which}`,
    content: section(
      'confirm',
      effect,
      html`${
          isMore
            ? html`<p class="problem">
                The list finds more devices than one command takes. These are the first ${grouped(COMMANDED_MAX)}.
              </p>`
            : ''
        }
        <ul>
          ${devices.slice(0, ROWS_SHOWN).map((device) => html`<li>${shortLink(view, device)}</li>`)}
          ${rest > 0 ? html`<li>and ${grouped(rest)} more</li>` : ''}
        </ul>
        <form method="post" action="${hrefOf(view, '/devices/command', { command })}">
          ${formTokenField(view)}
          <input type="hidden" name="devices" value="${devices.map(({ id }) => id).join(' ')}" />
          ${confirmation(`Yes, ${verb.toLowerCase()} for ${which}`)}
          <button class="danger">${verb}</button>
          ${back}
        </form>`,
    ),
  }
}

function devicesInWords(devices: readonly Pick<Device, 'id' | 'name'>[]): string {
  const [first] = devices
  return devices.length === 1 && first !== undefined
    ? (first.name ?? first.id)
    : counted(devices.length, 'device', 'devices')
}

function shortLink(view: View, { id, name }: Pick<Device, 'id' | 'name'>): Html {
  return html`<a href="${hrefOf(view, `/devices/${id}`)}">${name ?? 'without a name'}</a>
    <code>${id.slice(0, 8)}</code>`
}

async function chosenDevices(
  view: View,
): Promise<{ readonly devices: readonly Pick<Device, 'id' | 'name'>[]; readonly isMore: boolean }> {
  const { reader, query } = view
  if (query['of'] === 'all') {
    const found = await reader.edge.devices.find(deviceFilterOf(view).filter, 0, COMMANDED_MAX + 1)
    return { devices: found.slice(0, COMMANDED_MAX), isMore: found.length > COMMANDED_MAX }
  }
  const devices = []
  for (const id of new Set((query['device'] ?? '').split(',').slice(0, ROWS_SHOWN))) {
    const device = await reader.edge.devices.get(id.toLowerCase())
    if (device === undefined) continue
    requireReadable(view, device.instanceIds, 'The device')
    devices.push(device)
  }
  return { devices, isMore: false }
}

export async function commandedDevices(view: View, devices = ''): Promise<CommandRun['devices']> {
  const ids = devices.split(' ').filter((id) => id !== '')
  if (ids.length > COMMANDED_MAX) {
    throw new CodedError('CONSOLE_FORM_REFUSED', `A command takes up to ${grouped(COMMANDED_MAX)} devices.`)
  }
  const names = await deviceNames(view, ids)
  return ids.map((id) => ({ id, name: names.get(id) ?? null }))
}

export interface CommandRun {
  readonly command: DeviceCommandName
  readonly devices: readonly Pick<Device, 'id' | 'name'>[]
  /** Carries the command out for one device. Errors with a code become its result. */
  readonly run: (deviceId: string) => Promise<void>
}

/** Names are escaped, so they cannot contain it. */
const RESULTS = '<!--results-->'

/** The pieces of a page that grows with each result, so the browser shows the progress. */
export async function* resultPieces(view: View, { command, devices, run }: CommandRun): AsyncGenerator<string> {
  const { verb } = DEVICE_COMMAND_TEXT[command]
  const title = `${verb}: ${devicesInWords(devices)}`
  const content = section(
    'results',
    'Results',
    html`<p>
        This page grows with each result. If you close it before its end, the command is not carried out for the rest.
      </p>
      ${new Html(RESULTS)}`,
  )
  const [head = '', tail = ''] = documentOf({ title, content }, headerOf(view)).split(RESULTS)
  yield `${head}<ol>`
  let refused = 0
  for (const device of devices) {
    const problem = await problemOf(run, device.id)
    if (problem !== null) refused += 1
    yield html`<li>${shortLink(view, device)} ${problem ?? DONE}</li>`.text
  }
  const summary = html`<p role="status">
    <strong>${grouped(devices.length - refused)} done, ${grouped(refused)} refused.</strong>
    <a href="${hrefOf(view, '/devices')}">Back to the devices</a>
  </p>`
  yield `</ol>${summary.text}${tail}`
}

const DONE = html`<span class="ok">done</span>`

async function problemOf(run: CommandRun['run'], id: string): Promise<Html | null> {
  try {
    await run(id)
    return null
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    const text = ['refused:', error.message, remedyAfter(error.code), `(${error.code})`].filter((each) => each !== '')
    return html`<span class="refusing">${text.join(' ')}</span>`
  }
}
