/** One-time tokens for a list of devices, one file each. A run can be repeated: it skips devices that have one. */
import { orNull } from '../platform/or-null.ts'
import { readSmallText } from '../platform/read-file.ts'
import { join } from 'node:path'
import { decodeJwt } from 'jose'
import { type Labels, changedLabels, labelsIn } from '../protocol/edge/labels.ts'
import { CodedError } from '../protocol/errors.ts'
import { uuid } from '../protocol/wire.ts'
import { writeFileAtomically } from './atomic-write.ts'
import { firstOf } from './nouns/document.ts'

export interface ListedDevice {
  readonly name: string
  readonly instanceIds: readonly string[]
  readonly labels: Labels
}

export interface ProvisionedDevice {
  readonly name: string
  /** `issued`: new token. `waiting`: an earlier token is still usable. */
  readonly state: 'enrolled' | 'issued' | 'waiting' | 'failed'
  readonly file: string | null
  readonly expiresAt: number | null
  readonly problem: string
}

export interface Line {
  readonly directory: string
  /** Names of devices that are enrolled and not revoked. */
  readonly enrolled: ReadonlySet<string>
  readonly issue: (device: ListedDevice) => Promise<{ readonly token: string; readonly expiresAt: number }>
  readonly now: () => number
}

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/
const HEADERS = ['name,instances', 'name,instances,labels']

/** Tokens with less validity left are replaced: they must still be carried to the device. */
const CARRYING_MS = 3_600_000

/** Fields are separated by spaces; `#` begins a comment. @throws CodedError USAGE with the first invalid lines */
export function parseDeviceList(text: string): readonly ListedDevice[] {
  const devices = new Map<string, ListedDevice>()
  const problems: string[] = []
  const lines = text.replace(/^\uFEFF/, '').split(/\r?\n/)
  if (!HEADERS.includes(lines[0]?.replaceAll(' ', '') ?? ''))
    throw new CodedError('USAGE', `The first line of the list must be "${HEADERS.join('" or "')}".`)
  for (const [index, line] of lines.entries()) {
    if (index === 0 || line.trim() === '' || line.startsWith('#')) continue
    const fields = line.split(',').map((field) => field.trim())
    const [name = '', instances = '', labels = ''] = fields
    const problem = devices.has(name) ? `${name} appears twice` : problemOf(fields)
    if (problem === null) devices.set(name, { name, instanceIds: wordsOf(instances), labels: labelsIn(labels) })
    else problems.push(`line ${index + 1}: ${problem}`)
  }
  if (problems.length > 0) throw new CodedError('USAGE', `The list is invalid: ${firstOf(problems)}.`)
  return [...devices.values()]
}

/** Null: the fields describe a device. */
function problemOf([name = '', instances = '', labels = '', ...rest]: readonly string[]): string | null {
  if (!NAME.test(name)) return 'a name has 1 to 100 letters, digits, dots, dashes and underscores'
  const instanceIds = wordsOf(instances)
  if (rest.length > 0 || instanceIds.length === 0 || instanceIds.some((id) => !uuid.safeParse(id).success)) {
    return 'after the name, give the ids of instances, separated by spaces (tallygate instances list shows them)'
  }
  return labelsProblem(labels)
}

function wordsOf(text: string): readonly string[] {
  return text.split(/\s+/).filter((word) => word !== '')
}

function labelsProblem(text: string): string | null {
  try {
    changedLabels({}, { set: labelsIn(text) })
    return null
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    return error.message
  }
}

export async function* provision(devices: readonly ListedDevice[], line: Line): AsyncGenerator<ProvisionedDevice> {
  for (const device of devices) yield await provisionOne(device, line)
}

async function provisionOne(
  device: ListedDevice,
  { directory, enrolled, issue, now }: Line,
): Promise<ProvisionedDevice> {
  const { name } = device
  const file = join(directory, `${name}.token`)
  if (enrolled.has(name)) return { name, state: 'enrolled', file: null, expiresAt: null, problem: '' }
  const left = usableUntil(file)
  if (left !== null && left >= now() + CARRYING_MS)
    return { name, state: 'waiting', file, expiresAt: left, problem: '' }
  try {
    const { token, expiresAt } = await issue(device)
    await writeFileAtomically(file, `${token}\n`)
    return { name, state: 'issued', file, expiresAt, problem: '' }
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    return { name, state: 'failed', file: null, expiresAt: null, problem: `${error.code}: ${error.message}` }
  }
}

/** Expiry of the token in a file, POSIX ms; null if there is no token. */
function usableUntil(file: string): number | null {
  const exp = orNull(() => decodeJwt(readSmallText(file).trim()).exp)
  return exp === undefined || exp === null ? null : exp * 1000
}
