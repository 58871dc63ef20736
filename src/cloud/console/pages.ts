/** Every page that a signed-in administrator can open, by its path below the console. */
import { auditPage } from './audit.ts'
import { confirmCommandPage } from './device-commands.ts'
import { devicePage } from './device.ts'
import { devicesPage } from './devices.ts'
import { editLineItemPage } from './edit-line-item.ts'
import { lineItemsPage } from './line-items.ts'
import { overviewPage } from './overview.ts'
import type { Page, View } from './page.ts'
import { rateTablesPage } from './rate-tables.ts'
import { rulesPage } from './rules.ts'
import { sessionsPage } from './sessions.ts'
import { tryPage } from './try-request.ts'
import { usagePage } from './usage.ts'

export const PAGES: readonly (readonly [path: string, make: (view: View) => Promise<Page>])[] = [
  ['', overviewPage],
  ['/devices', devicesPage],
  ['/devices/command', confirmCommandPage],
  ['/devices/:deviceId', devicePage],
  ['/line-items', lineItemsPage],
  ['/line-items/edit', editLineItemPage],
  ['/rules', rulesPage],
  ['/try', tryPage],
  ['/rate-tables', rateTablesPage],
  ['/usage', usagePage],
  ['/sessions', sessionsPage],
  ['/audit', auditPage],
]
