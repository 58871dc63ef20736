/** Names up to `ITEM` come from the service's data warehouse; the other names are this project's own. */
import { z } from 'zod'
import { MICRO_MAX } from '../../core/pricing/amount.ts'
import { queryInstant, uuidInLowerCase } from '../wire.ts'

export const USAGE_FORMATS = ['csv', 'ndjson'] as const
export type UsageFormat = (typeof USAGE_FORMATS)[number]

export const USAGE_MEDIA_TYPES: Readonly<Record<UsageFormat, string>> = {
  csv: 'text/csv; charset=utf-8; header=present',
  ndjson: 'application/x-ndjson; charset=utf-8',
}

export const usageCursorHeader = 'x-next-cursor'

/** Position of a record in order of writing; 0 is before all. */
export const usageCursor = z
  .string()
  .regex(/^(0|[1-9]\d{0,18})$/, 'must be the cursor of a previous export')
  .transform(BigInt)
  .refine((cursor) => cursor <= MICRO_MAX, 'must be the cursor of a previous export')

/** Query of `GET .../usage`. Strict: without a misspelled filter, the export would contain other records. */
export const usageQuery = z
  .strictObject({
    format: z.enum(USAGE_FORMATS).optional(),
    instanceId: uuidInLowerCase.optional(),
    from: queryInstant.optional(),
    to: queryInstant.optional(),
    after: usageCursor.optional(),
  })
  .refine(({ from, to }) => from === undefined || to === undefined || from < to, {
    path: ['to'],
    message: 'must be later than from',
  })

export const USAGE_COLUMNS = [
  ['CORRELATION_ID', 'correlationId'],
  ['TENANT_ID', 'tenantId'],
  ['USAGE_TIME', 'usageTime'],
  ['WRITE_TIME', 'writeTime'],
  ['CONSUMER_ID', 'consumerId'],
  ['CONSUMER_TYPE', 'consumerType'],
  ['ACCOUNT_ID', 'accountId'],
  ['INSTANCE_ID', 'instanceId'],
  ['ACTIVATION_ID', 'activationId'],
  ['MAPPED_ENTITLED_COUNT', 'mappedEntitledCount'],
  ['USED', 'used'],
  ['ITEM', 'item'],
  ['ITEM_VERSION', 'itemVersion'],
  ['COUNT', 'count'],
  ['OPERATION', 'operation'],
  ['STATUS', 'status'],
  ['TOKENS', 'tokens'],
  ['SOURCE', 'source'],
  ['SESSION_ID', 'sessionId'],
  ['DEVICE_ID', 'deviceId'],
  ['EPOCH', 'epoch'],
  ['ENTRY', 'entry'],
  ['META_DATA', 'metaData'],
  ['CURSOR', 'cursor'],
] as const

export type UsageColumn = (typeof USAGE_COLUMNS)[number][1]
