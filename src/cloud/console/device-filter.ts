/** Which devices a list shows, from the query of the page. */
import { CONTACTS, type Contact, type DeviceFilter } from '../storage/device-records.ts'
import type { View } from './page.ts'

export interface DeviceChoice {
  readonly search: string
  readonly contact: Contact | undefined
  readonly filter: DeviceFilter
}

/** A device that missed this many reports in a row is overdue. */
const REPORTS_MISSED = 3

export function overdueBefore({ now, terms }: Pick<View, 'now' | 'terms'>): number {
  return now - REPORTS_MISSED * terms.syncEveryMs
}

export function deviceFilterOf(view: Pick<View, 'query' | 'instance' | 'now' | 'terms'>): DeviceChoice {
  const { query, instance } = view
  const contact = CONTACTS.find((each) => each === query['contact'])
  const search = query['search'] ?? ''
  const filter = {
    instanceId: instance?.id,
    contact,
    search: search === '' ? undefined : search,
    overdueBefore: overdueBefore(view),
  }
  return { search, contact, filter }
}
