import { CONTACTS, type Contact, type DeviceFilter } from '../storage/device-records.ts'
import { parseLabels } from '../../protocol/edge/labels.ts'
import { overdueBefore } from '../devices/terms.ts'
import { type View, typed } from './page.ts'

export interface DeviceChoice {
  readonly search: string
  readonly contact: Contact | undefined
  readonly labels: string
  readonly filter: DeviceFilter
}

export function deviceFilterOf(
  view: Pick<View, 'query' | 'instance' | 'now' | 'terms' | 'administrator'>,
): DeviceChoice {
  const { query, instance, administrator } = view
  const [search, labels] = [typed(view, 'search'), typed(view, 'labels')]
  const contact = CONTACTS.find((each) => each === query['contact'])
  const before = overdueBefore(view.now, view.terms)
  const filter = {
    instanceId: instance?.id,
    contact: contact === undefined ? undefined : { state: contact, overdueBefore: before },
    search: search === '' ? undefined : search,
    labels: parseLabels(labels),
    scope: administrator.scope,
  }
  return { search, contact, labels, filter }
}
