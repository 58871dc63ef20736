/** Usage export for billing; this project's own operation. */
import { CodedError } from '../../../protocol/errors.ts'
import {
  USAGE_MEDIA_TYPES,
  type UsageFormat,
  usageCursorHeader,
  usageQuery,
} from '../../../protocol/service/usage-export.ts'
import { type UsageExportDeps, exportUsage } from '../../usage/export-usage.ts'
import { usageReportQuery } from '../../../protocol/service/usage-report.ts'
import { type UsageReportDeps, reportUsage } from '../../usage/report-usage.ts'
import { type Operation, dataOperation, serviceOperation, ADMINISTRATORS } from '../operation.ts'

export function usageOperations({
  tenantId,
  ...deps
}: UsageExportDeps & { readonly tenantId: string }): readonly Operation[] {
  return [
    serviceOperation({
      id: 'exportusage',
      tag: 'Usage',
      summary: 'Export usage records as CSV or NDJSON, oldest first',
      description: `The header ${usageCursorHeader} of the response is the \`after\` value of the next export.`,
      answers: {
        200: { description: 'One record per line.', streams: Object.values(USAGE_MEDIA_TYPES) },
      },
      errors: ['NOT_ACCEPTABLE', 'CURSOR_UNKNOWN', 'USAGE_FORGOTTEN', 'USAGE_ARCHIVED', 'NOT_FOUND'],
      method: 'GET',
      path: '/usage',
      areas: ['provisioning/api'],
      versions: ['v1.1'],
      principals: ADMINISTRATORS,
      query: usageQuery,
      handle: async ({ query, headers: { accept } }) => {
        const format = query.format ?? acceptedFormat(accept)
        const { next, pieces } = await exportUsage(deps, {
          format,
          tenantId,
          instanceId: query.instanceId ?? null,
          from: query.from ?? null,
          to: query.to ?? null,
          after: query.after ?? null,
        })
        const headers = { [usageCursorHeader]: String(next), 'cache-control': 'no-store' }
        return { status: 200, headers, stream: { type: USAGE_MEDIA_TYPES[format], pieces } }
      },
    }),
  ]
}

/** For existing reporters of the original service. */
export function usageReportOperations(deps: UsageReportDeps & { readonly tenantId: string }): readonly Operation[] {
  return [
    dataOperation({
      id: 'reportusage',
      tag: 'Usage',
      summary: 'Report usage records, oldest first, in pages',
      description:
        'The range begins at 00:00 UTC, `pastDays` days before today. A page has at most 10,000 records; `data` is empty after the last page. To miss no record and to get none twice, use `exportusage` of the service API.',
      answers: {
        200: { description: 'The records: `{"data": [...]}`.', streams: ['application/json; charset=utf-8'] },
      },
      errors: ['USAGE_ARCHIVED', 'NOT_FOUND'],
      method: 'GET',
      path: '/report/usage',
      principals: ADMINISTRATORS,
      basic: true,
      query: usageReportQuery,
      handle: async ({ query: { pastDays, pageNumber = 1, instanceId = null }, now }) => {
        const pieces = await reportUsage(deps, { tenantId: deps.tenantId, instanceId, pastDays, pageNumber, now })
        return {
          status: 200,
          headers: { 'cache-control': 'no-store' },
          stream: { type: 'application/json; charset=utf-8', pieces },
        }
      },
    }),
  ]
}

/** In order of preference. */
const ACCEPTED: readonly (readonly [format: UsageFormat, ranges: readonly string[]])[] = [
  ['ndjson', ['application/x-ndjson', 'application/ndjson', 'application/*', '*/*']],
  ['csv', ['text/csv', 'text/*', '*/*']],
]

/** @throws CodedError NOT_ACCEPTABLE */
function acceptedFormat(accept = '*/*'): UsageFormat {
  const weighed = accept.split(',').map((range) => {
    const [type = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase())
    const weight = parameters.find((parameter) => parameter.startsWith('q='))
    return { type, weight: weight === undefined ? 1 : Number(weight.slice(2)) }
  })
  let best: { format: UsageFormat; weight: number } | undefined
  for (const [format, ranges] of ACCEPTED) {
    // The most specific range determines the weight.
    const weight = ranges.map((name) => weighed.find(({ type }) => type === name)?.weight).find((w) => w !== undefined)
    if (weight !== undefined && weight > (best?.weight ?? 0)) best = { format, weight }
  }
  if (best !== undefined) return best.format
  throw new CodedError('NOT_ACCEPTABLE', 'Usage records are available as text/csv and application/x-ndjson.')
}
