import { auditPage } from './audit.ts'
import { confirmCommandPage } from './device-commands.ts'
import { devicePage } from './device.ts'
import { devicesPage } from './devices.ts'
import type { Edit } from './edit.ts'
import { ACTIONS_EDIT, editActionsPage } from './edit-actions.ts'
import { CONDITION_EDIT, editConditionPage } from './edit-condition.ts'
import { INSTANCE_EDIT, editInstancePage } from './edit-instance.ts'
import { LIMIT_EDIT, LIMIT_REMOVAL, editLimitPage, removeLimitPage } from './edit-limit.ts'
import { LINE_ITEM_EDIT, editLineItemPage } from './edit-line-item.ts'
import { RATE_TABLE_EDIT, editRateTablePage } from './edit-rate-table.ts'
import { lineItemsPage } from './line-items.ts'
import { overviewPage } from './overview.ts'
import type { Page, View } from './page.ts'
import { rateTablesPage } from './rate-tables.ts'
import { rulesPage } from './rules.ts'
import { sessionsPage } from './sessions.ts'
import { sinkPage, sinksPage } from './sinks.ts'
import { tryPage } from './try-request.ts'

export const PAGES: readonly (readonly [path: string, make: (view: View) => Promise<Page>])[] = [
  ['', overviewPage],
  ['/devices', devicesPage],
  ['/devices/command', confirmCommandPage],
  ['/devices/:deviceId', devicePage],
  [INSTANCE_EDIT.path, editInstancePage],
  ['/line-items', lineItemsPage],
  [LINE_ITEM_EDIT.path, editLineItemPage],
  [LIMIT_EDIT.path, editLimitPage],
  [LIMIT_REMOVAL.path, removeLimitPage],
  ['/rules', rulesPage],
  [ACTIONS_EDIT.path, editActionsPage],
  [CONDITION_EDIT.path, editConditionPage],
  ['/try', tryPage],
  ['/rate-tables', rateTablesPage],
  [RATE_TABLE_EDIT.path, editRateTablePage],
  ['/sessions', sessionsPage],
  ['/sinks', sinksPage],
  ['/sinks/:sink', sinkPage],
  ['/audit', auditPage],
]

export const EDITS: readonly Edit[] = [
  INSTANCE_EDIT,
  LINE_ITEM_EDIT,
  LIMIT_EDIT,
  LIMIT_REMOVAL,
  ACTIONS_EDIT,
  CONDITION_EDIT,
  RATE_TABLE_EDIT,
]
