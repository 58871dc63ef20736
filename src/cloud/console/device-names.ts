import { type Html, html } from '../../html/html.ts'
import { CodedError } from '../../protocol/errors.ts'
import { uuidInLowerCase } from '../../protocol/wire.ts'
import { type View, hrefOf, mayRead } from './page.ts'

/** Maximum number of devices whose names begin in the same way. */
const ALIKE_MAX = 1_000

/** Names by id. Only of devices that the administrator may open. */
export async function deviceNames(view: View, ids: readonly (string | null)[]): Promise<ReadonlyMap<string, string>> {
  const names = new Map<string, string>()
  for (const id of new Set(ids)) {
    const device = id === null ? undefined : await view.reader.edge.devices.get(id)
    if (device !== undefined && device.name !== null && mayRead(view, device.instanceIds)) {
      names.set(device.id, device.name)
    }
  }
  return names
}

export function shortDeviceLink(view: View, id: string, names: ReadonlyMap<string, string>): Html {
  return html`<a href="${hrefOf(view, `/devices/${id}`)}">device ${names.get(id) ?? id.slice(0, 8)}</a> `
}

/** @param named id or name; empty: undefined. @throws CodedError NOT_FOUND, CONFLICT if several have the name */
export async function deviceIdOf(view: View, named: string): Promise<string | undefined> {
  const id = uuidInLowerCase.safeParse(named)
  if (named === '' || id.success) return id.data
  const filter = { search: named, scope: view.administrator.scope }
  const alike = await view.reader.edge.devices.find(filter, 0, ALIKE_MAX)
  const [found, ...others] = alike.filter(({ name }) => name === named)
  if (found === undefined) throw new CodedError('NOT_FOUND', `There is no device ${named}.`)
  if (others.length === 0) return found.id
  const ids = [found, ...others].map((device) => device.id).join(', ')
  throw new CodedError('CONFLICT', `Several devices are named ${named}: use an id (${ids}).`)
}
