/** Which devices a list shows, from the query of the page. */
import { CONTACTS, type Contact, type DeviceFilter } from '../storage/device-records.ts'
import { overdueBefore } from '../devices/terms.ts'
import type { View } from './page.ts'

export interface DeviceChoice {
  readonly search: string
  readonly contact: Contact | undefined
  readonly filter: DeviceFilter
}

export function deviceFilterOf(view: Pick<View, 'query' | 'instance' | 'now' | 'terms'>): DeviceChoice {
  const { query, instance } = view
  const contact = CONTACTS.find((each) => each === query['contact'])
  const search = query['search'] ?? ''
  const filter = {
    instanceId: instance?.id,
    contact,
    search: search === '' ? undefined : search,
    overdueBefore: overdueBefore(view.now, view.terms),
  }
  return { search, contact, filter }
}
