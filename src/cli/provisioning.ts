/**
 * A production line: a list of devices, and for each of them a one-time token in a file of its own. It may be broken off and run
 * again at any time, with the same list or a longer one: who is enrolled is left alone, a token that can still be used
 * is kept, and one device that fails keeps no other from its token.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { decodeJwt } from 'jose'
import { CodedError } from '../protocol/errors.ts'
import { uuid } from '../protocol/wire.ts'
import { writeWholeFile } from './whole-file.ts'

export interface ListedDevice {
  /** Also the name of its file. */
  readonly name: string
  readonly instanceIds: readonly string[]
}

export interface ProvisionedDevice {
  readonly name: string
  /** `issued`: the token is fresh. `waiting`: it was made before, and can still be used. */
  readonly state: 'enrolled' | 'issued' | 'waiting' | 'failed'
  readonly file: string | null
  /** POSIX ms. */
  readonly expiresAt: number | null
  /** What went wrong; empty for nothing. */
  readonly problem: string
}

export interface Line {
  readonly directory: string
  /** Names of the devices that are enrolled and not revoked. */
  readonly enrolled: ReadonlySet<string>
  readonly issue: (device: ListedDevice) => Promise<{ readonly token: string; readonly expiresAt: number }>
  /** POSIX ms. */
  readonly now: () => number
}

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/
const HEADER = 'name,instances'

/** A token that ends sooner is made anew: somebody still has to carry it to the device, ms. */
const CARRYING_MS = 3_600_000

/**
 * Reads `name,instances` in CSV, instances with spaces between, one device a line; `#` begins a comment line.
 *
 * @throws CodedError USAGE with every line that is wrong
 */
export function parseDeviceList(text: string): readonly ListedDevice[] {
  const devices = new Map<string, ListedDevice>()
  const problems: string[] = []
  const lines = text.replace(/^\uFEFF/, '').split(/\r?\n/)
  if (lines[0]?.replaceAll(' ', '') !== HEADER)
    throw new CodedError('USAGE', `The first line of the list is not "${HEADER}".`)
  for (const [index, line] of lines.entries()) {
    if (index === 0 || line.trim() === '' || line.startsWith('#')) continue
    const [name = '', instances = '', ...rest] = line.split(',').map((field) => field.trim())
    const instanceIds = instances.split(/\s+/).filter((id) => id !== '')
    const problem = !NAME.test(name)
      ? 'the name takes letters, digits, dot, dash and underscore, 100 at most'
      : devices.has(name)
        ? `${name} is there twice`
        : rest.length > 0 || instanceIds.length === 0 || instanceIds.some((id) => !uuid.safeParse(id).success)
          ? 'after the name it takes the UUIDs of instances, with spaces between'
          : null
    if (problem === null) devices.set(name, { name, instanceIds })
    else problems.push(`line ${index + 1}: ${problem}`)
  }
  if (problems.length > 0) throw new CodedError('USAGE', `The list is not understood: ${problems.join('; ')}.`)
  return [...devices.values()]
}

/** One device after the other; each is settled, on the disk too, before the next one. */
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
    await writeWholeFile(file, bytesOf(token))
    return { name, state: 'issued', file, expiresAt, problem: '' }
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    return { name, state: 'failed', file: null, expiresAt: null, problem: `${error.code}: ${error.message}` }
  }
}

/** End of the token in a file, POSIX ms; null for one that is not there or is none. */
function usableUntil(file: string): number | null {
  try {
    const { exp } = decodeJwt(readFileSync(file, 'utf8').trim())
    return exp === undefined ? null : exp * 1000
  } catch {
    return null
  }
}

async function* bytesOf(token: string): AsyncIterable<Uint8Array> {
  yield await Promise.resolve(Buffer.from(`${token}\n`))
}
