import { isRefusal } from '../../core/rules/refusal-reasons.ts'
import { z } from 'zod'
import { queryText } from '../../client/call.ts'
import { parseRepeatableJson } from '../../client/exact-json.ts'
import { linesOf } from '../../client/lines-of.ts'
import { CodedError } from '../../protocol/errors.ts'
import { CONDITION_DEPTH_MAX } from '../../core/rules/policy.ts'
import { conditionDepth, conditionInput } from '../../protocol/service/conditions.ts'
import { configurationProblem } from '../../protocol/service/configuration.ts'
import { LIMIT_FREQUENCIES, consumptionLimitBody, usualReset } from '../../protocol/service/consumption-limits.ts'
import { instanceBody } from '../../protocol/service/instances.ts'
import { contradictions, lineItemBodies, RESET_FREQUENCIES, stateProblem } from '../../protocol/service/line-items.ts'
import { rateTableBody } from '../../protocol/service/rate-tables.ts'
import { SESSIONS_SHOWN_MAX } from '../../protocol/service/sessions.ts'
import { sha256 } from '../../protocol/signing.ts'
import { INSTANT_MAX, idempotencyHeader, uuid } from '../../protocol/wire.ts'
import { actionsBody, comparableActions, listRules, savedActions } from './actions.ts'
import type { Settable } from './change.ts'
import { type Noun, type Scope, column, field, named, valueText, time, tokens, tokensText } from './noun.ts'
import type { Row, Service } from './service.ts'

const PROVISIONING = '/provisioning/api/v1.1'
const SERVICE = '/api/v1.1'

const below = (area: string, instanceId: string | null): string => `${area}/instances/${instanceId}`
const segment = (value: unknown): string => encodeURIComponent(valueText(value))

const attributesOf = (row: Row): Row => (row['attributes'] ?? {}) as Row

/** In the order of the help. To add a noun, add a row. */
export const NOUNS: readonly Noun[] = [
  {
    name: 'instances',
    one: 'instance',
    examples: ['tallygate instances set Workshop --account me', 'tallygate instances list'],
    instance: 'none',
    list: async (service) => service.instances(),
    nameOf: (row) => valueText(row['shortName']),
    ids: ['id'],
    columns: [
      column('NAME', 'shortName'),
      column('ACCOUNT', 'accountId'),
      { head: 'DEFAULT', of: (row) => (row['defaultInstance'] === true ? 'yes' : '') },
      time('CREATED', 'created'),
      column('ID', 'id'),
    ],
    set: {
      name: 'shortName',
      called: 'name',
      fields: [field('accountId', '--account <id>', 'customer account that owns it', 'text')],
      schema: instanceBody,
      complete: (given, current) => ({ ...current, ...given }),
      current: ({ shortName, accountId }) => ({ shortName, accountId }),
      // Two commands at the same time create one instance: it could not be deleted, and would sell its tokens twice.
      call: ({ body }) => ({
        method: 'POST',
        path: `${PROVISIONING}/instances`,
        headers: { [idempotencyHeader]: sha256(JSON.stringify([body['shortName'], body['accountId']])) },
        body,
      }),
      fixed: true,
    },
  },
  {
    name: 'line-items',
    one: 'line item',
    examples: [
      'tallygate line-items set FIRST-1000 --quantity 1000 --reset MONTHLY',
      'tallygate line-items list --instance Workshop',
    ],
    instance: 'one',
    list: async (service, { instanceId }) => service.rows(`${below(PROVISIONING, instanceId)}/line-items`),
    nameOf: (row) => valueText(row['activationId']),
    columns: [
      column('LINE ITEM', 'activationId'),
      column('STATE', 'state'),
      tokens('QUANTITY', 'quantity'),
      tokens('USED', 'used'),
      { head: 'OVERDRAFT', of: (row) => overdraftText(attributesOf(row)) },
      { head: 'RESET', of: (row) => valueText(attributesOf(row)['resetFrequency']) },
      { head: 'RATES', of: (row) => valueText(attributesOf(row)['rateTableSeries']) },
      { head: 'START', of: (row) => windowText(row['start']) },
      { head: 'END', of: (row) => windowText(row['end']) },
    ],
    set: {
      name: 'activationId',
      called: 'name',
      fields: [
        field('quantity', '--quantity <tokens>', 'tokens per period', 'number'),
        field('state', '--state <state>', 'state (default: DEPLOYED)', ['DEPLOYED', 'INACTIVE', 'OBSOLETE']),
        field('start', '--start <time>', 'first moment of use (default: any)', 'time'),
        field('end', '--end <time>', 'last moment of use (default: any)', 'time'),
        field('attributes.elastic', '--elastic <boolean>', 'can pay for access requests (default: true)', 'boolean'),
        field(
          'attributes.rateTableSeries',
          '--series <name>',
          'series of its rate tables (default: tables without a series)',
          'text',
        ),
        field('attributes.overdraftType', '--overdraft-type <type>', 'overdraft', ['Number', 'Unlimited']),
        field('attributes.overdraftLimit', '--overdraft <tokens>', 'with type Number', 'number'),
        field('attributes.resetFrequency', '--reset <frequency>', 'period of the quantity', RESET_FREQUENCIES),
      ],
      schema: lineItemBodies['v1.1'].superRefine((body, context) => {
        for (const { path, problem, lacks } of contradictions(body))
          context.addIssue({
            code: 'custom',
            ...(lacks === undefined
              ? { path: [...path], message: problem }
              : { path: [...path, lacks], message: 'is missing' }),
          })
      }),
      refuse: (body, existing) =>
        stateProblem(existing === undefined ? null : valueText(existing['state']), valueText(body['state'])),
      complete: (given, current) => ({
        state: 'DEPLOYED',
        start: 0,
        end: INSTANT_MAX,
        ...current,
        ...given,
        attributes: { elastic: true, rateTableSeries: '', ...attributesOf('attributes' in given ? given : current) },
      }),
      current: ({ used: _used, ...row }) => row,
      call: ({ body, scope }) => ({
        method: 'PUT',
        path: `${below(PROVISIONING, scope.instanceId)}/line-items`,
        body,
      }),
    },
    remove: (row, { instanceId }) => `${below(PROVISIONING, instanceId)}/line-items/${segment(row['activationId'])}`,
  },
  {
    name: 'rate-tables',
    one: 'rate table',
    examples: ['tallygate rate-tables set 1 --rate LaserCut@1.0=0.85 --rate Print=1', 'tallygate rate-tables show 1'],
    instance: 'none',
    list: async (service) => service.rows(`${PROVISIONING}/rate-tables`),
    nameOf: ({ series, version }) =>
      [series, version]
        .map(valueText)
        .filter((each) => each !== '')
        .join('/'),
    columns: [
      column('SERIES', 'series'),
      column('VERSION', 'version'),
      time('EFFECTIVE FROM', 'effectiveFrom', 'always'),
      column('ITEM', 'item'),
      column('ITEM VERSION', 'itemVersion'),
      column('RATE', 'rate'),
    ],
    lines: (row) =>
      (row['items'] as readonly Row[]).map(({ name, version, rate, formula }, index) => ({
        ...(index === 0 ? row : {}),
        item: name,
        itemVersion: version,
        rate: rate ?? formula,
      })),
    set: {
      name: 'version',
      called: 'version',
      fields: [
        field('series', '--series <name>', 'series (default: none)', 'text'),
        field('effectiveFrom', '--effective-from <time>', 'first moment (default: now)', 'time'),
        field(
          'items',
          '--rate <item=rate>',
          'item with its tokens per unit, such as LaserCut@1.0=0.85; can be repeated',
          'rates',
        ),
      ],
      schema: rateTableBody['v1.1'],
      complete: (given, current, now) => ({ series: '', effectiveFrom: now, ...current, ...given }),
      current: ({ created: _created, ...row }) => row,
      call: ({ body: { series, ...body } }) => ({
        method: 'POST',
        path: `${PROVISIONING}/rate-tables`,
        body: { ...body, ...(series === '' ? {} : { series }) },
      }),
      fixed: true,
      warning: missingItemsWarning,
    },
    remove: ({ series, version }) => {
      const query = queryText({ series: series === '' ? null : valueText(series), version: valueText(version) })
      return `${PROVISIONING}/rate-tables?${query}`
    },
  },
  {
    name: 'rules',
    one: 'list of actions',
    examples: ['tallygate rules set FIRST-1000 -f rules.yaml', 'tallygate rules show FIRST-1000'],
    instance: 'one',
    list: listRules,
    nameOf: (row) => valueText(row['lineItemId']),
    columns: [
      column('LINE ITEM', 'lineItemId'),
      column('ACTION', 'action'),
      column('CONDITION', 'condition'),
      tokens('ALLOCATION', 'allocation'),
      tokens('USED', 'used'),
      column('NAME', 'name'),
    ],
    lines: ({ lineItemId, actions }) => (actions as readonly Row[]).map((action) => ({ lineItemId, ...action })),
    set: {
      name: 'lineItemId',
      called: 'line item',
      fields: [],
      schema: actionsBody,
      complete: (given) => given,
      current: comparableActions,
      call: async (change) => {
        const path = `${below(SERVICE, change.scope.instanceId)}/line-items/${segment(change.body['lineItemId'])}/actions`
        return { method: 'PUT', path, body: await savedActions(change) }
      },
    },
    remove: (row, { instanceId }) => `${below(SERVICE, instanceId)}/line-items/${segment(row['lineItemId'])}/actions`,
  },
  {
    name: 'conditions',
    one: 'condition',
    examples: [
      'tallygate conditions set design --property department --values design,cad',
      'tallygate conditions delete design',
    ],
    instance: 'one',
    list: async (service, { instanceId }) => service.rows(`${below(SERVICE, instanceId)}/conditions`),
    nameOf: ({ name, id }) => valueText(name ?? id),
    ids: ['id'],
    columns: [column('NAME', 'name'), { head: 'CONDITION', of: (row) => conditionText(row) }, column('ID', 'id')],
    set: {
      name: 'name',
      called: 'name',
      fields: [
        field('property', '--property <name>', 'property of the requester', 'text'),
        field('values', '--values <values>', 'accepted values, separated by commas', 'words'),
      ],
      schema: conditionInput.refine(
        (condition) => conditionDepth(condition) <= CONDITION_DEPTH_MAX,
        `is nested deeper than ${CONDITION_DEPTH_MAX} levels`,
      ),
      complete: (given) => ('operator' in given ? given : { operator: 'IN', ...given }),
      current: withoutIds,
      call: ({ body, existing, scope }) => ({
        method: 'PATCH',
        path: `${below(SERVICE, scope.instanceId)}/conditions`,
        body: [{ ...body, id: existing?.['id'] }],
      }),
    },
    remove: ({ id }, { instanceId }) => `${below(SERVICE, instanceId)}/conditions/${segment(id)}`,
  },
  {
    name: 'limits',
    one: 'consumption limit',
    examples: ['tallygate limits set FIRST-1000 --limit 100 --frequency DAILY', 'tallygate limits list'],
    instance: 'one',
    list: listLimits,
    nameOf: (row) => valueText(row['lineItemId']),
    columns: [
      column('LINE ITEM', 'lineItemId'),
      tokens('LIMIT', 'limit'),
      column('FREQUENCY', 'frequency'),
      time('NEXT RESET', 'nextReset'),
    ],
    set: {
      name: 'lineItemId',
      called: 'line item',
      fields: [
        field('limit', '--limit <tokens>', 'most tokens of one requester in a period', 'number'),
        field('frequency', '--frequency <frequency>', 'length of a period', LIMIT_FREQUENCIES),
        {
          path: 'nextReset',
          flags: '--next-reset <time>',
          help: 'next reset (default: unchanged; of a new limit or frequency, the end of this day, week, month or year, UTC)',
          kind: 'time',
          isFuture: true,
        },
      ],
      schema: consumptionLimitBody.safeExtend({ lineItemId: lineItemBodies['v1.1'].shape.activationId }),
      complete: (given, current, now) => {
        const body = { ...current, ...given }
        const usual = usualReset(body['frequency'], current, now)
        // A file keeps its time after it has passed; the limit then has a later one.
        const isPast = body['frequency'] === current['frequency'] && Number(given['nextReset']) <= now
        return { ...body, nextReset: isPast ? usual : (given['nextReset'] ?? usual) }
      },
      current: (row) => row,
      derived: 'nextReset',
      call: ({ body: { lineItemId, ...body }, scope }) => ({
        method: 'PUT',
        path: `${below(SERVICE, scope.instanceId)}/line-items/${segment(lineItemId)}/consumption-limit`,
        body,
      }),
    },
    remove: (row, { instanceId }) =>
      `${below(SERVICE, instanceId)}/line-items/${segment(row['lineItemId'])}/consumption-limit`,
  },
  {
    name: 'sessions',
    one: 'session',
    examples: ['tallygate sessions list --instance Workshop', 'tallygate sessions lock "$session"'],
    instance: 'any',
    list: async (service, { instanceId }) =>
      service.rows(`${SERVICE}/sessions${instanceId === null ? '' : `?instanceId=${instanceId}`}`),
    nameOf: (row) => valueText(row['sessionId']),
    listedMax: SESSIONS_SHOWN_MAX,
    path: (id) => {
      if (!uuid.safeParse(id).success) throw new CodedError('USAGE', `${id} is not the id of a session: use a UUID.`)
      return `${SERVICE}/sessions/${segment(id)}`
    },
    columns: [
      column('SESSION', 'sessionId'),
      column('STATE', 'state'),
      named('INSTANCE', 'instanceId', 'instances'),
      time('CHARGED UNTIL', 'chargedUntil'),
      time('LAST REQUEST', 'lastAccessRequest'),
    ],
    remove: ({ sessionId }) => `${SERVICE}/sessions/${segment(sessionId)}`,
  },
  {
    name: 'usage',
    one: 'usage record',
    examples: [
      'tallygate usage list --since 2026-05-01',
      'tallygate usage list --device press-7 --refused',
      'tallygate usage totals --since 2026-05-01 --until 2026-06-01',
      'tallygate usage export --out usage.csv',
    ],
    instance: 'any',
    since: true,
    list: listUsage,
    nameOf: (row) => valueText(row['correlationId']),
    columns: [
      time('TIME', 'usageTime'),
      column('ITEM', 'item'),
      column('COUNT', 'count'),
      tokens('TOKENS', 'tokens'),
      column('STATUS', 'status'),
      column('REQUESTER', 'consumerId'),
      named('DEVICE', 'deviceId', 'devices'),
      column('LINE ITEM', 'activationId'),
      named('INSTANCE', 'instanceId', 'instances'),
      column('OPERATION', 'operation'),
      column('CORRELATION ID', 'correlationId'),
    ],
  },
  {
    name: 'keys',
    one: 'key',
    examples: ['tallygate keys set ada.pem --name Ada --role read --instance Workshop', 'tallygate keys delete Ada'],
    instance: 'none',
    list: async (service) => service.pages(`${SERVICE}/public-keys`, 'keys'),
    nameOf: (row) => valueText(row['id']),
    ids: ['name'],
    columns: [
      column('ID', 'id'),
      column('NAME', 'name'),
      column('TYPE', 'type'),
      { head: 'ROLES', of: ({ type, roles }) => (type === 'client-key' ? '' : listText(roles)) },
      {
        head: 'INSTANCES',
        named: 'instances',
        of: ({ instances: ids }, names) =>
          listText(Array.isArray(ids) ? ids.map(valueText).map((id) => names.get(id) ?? id) : ids),
      },
      time('SINCE', 'modified'),
    ],
    remove: ({ id, type }) => `${SERVICE}/${valueText(type)}s/${segment(id)}`,
  },
  {
    name: 'configuration',
    one: 'configuration value',
    examples: ['tallygate configuration set timezone.tolerant --value true', 'tallygate configuration list'],
    instance: 'none',
    list: async (service) => service.rows(`${PROVISIONING}/configuration`),
    nameOf: (row) => valueText(row['name']),
    columns: [column('NAME', 'name'), column('VALUE', 'value'), time('CHANGED', 'modified')],
    set: {
      name: 'name',
      called: 'name',
      fields: [field('value', '--value <value>', 'new value', 'text')],
      schema: z.strictObject({ name: z.string(), value: z.string() }).superRefine((row, context) => {
        const problem = configurationProblem('v1.1', row)
        if (problem !== undefined) context.addIssue({ code: 'custom', message: problem })
      }),
      complete: (given) => ({
        ...given,
        ...(given['value'] === undefined ? {} : { value: valueText(given['value']) }),
      }),
      current: ({ name, value }) => ({ name, value }),
      derived: 'value',
      call: ({ body }) => ({ method: 'PATCH', path: `${PROVISIONING}/configuration`, body: [body] }),
    },
  },
]

export function settableNoun(name: string): Settable {
  const noun = NOUNS.find((each) => each.name === name)
  if (noun?.set === undefined) throw new Error(`invariant: there is no noun ${name} that can be set`)
  return { ...noun, set: noun.set }
}

const ITEMS_SHOWN = 10

/** Only one table of a series is in effect, so a table with one new item ends the rates of all others. */
function missingItemsWarning(body: Row, known: readonly Row[]): string | undefined {
  const begin = ({ effectiveFrom }: Row): number => Number(valueText(effectiveFrom))
  const namesOf = ({ items }: Row): readonly string[] =>
    (items as readonly Row[]).map(({ name, version }) => `${valueText(name)} ${valueText(version)}`.trim())
  const [replaced] = known
    .filter((table) => valueText(table['series']) === valueText(body['series']) && begin(table) <= begin(body))
    .toSorted((one, other) => begin(other) - begin(one))
  if (replaced === undefined) return undefined
  const rated = new Set(namesOf(body))
  const missing = namesOf(replaced).filter((name) => !rated.has(name))
  if (missing.length === 0) return undefined
  const rest = missing.length > ITEMS_SHOWN ? ` and ${missing.length - ITEMS_SHOWN} more` : ''
  return `version ${valueText(body['version'])} replaces version ${valueText(replaced['version'])}, but does not rate ${missing.slice(0, ITEMS_SHOWN).join(', ')}${rest}: when it takes effect, requests for these items are refused. To allow them, set another version with all items.`
}

function overdraftText({ overdraftType, overdraftLimit }: Row): string {
  return overdraftType === 'Unlimited' ? 'unlimited' : tokensText(overdraftLimit)
}

/** Empty: no limit. */
export function windowText(value: unknown): string {
  return value === 0 || Number(valueText(value)) >= INSTANT_MAX ? '' : new Date(Number(valueText(value))).toISOString()
}

/** Absent: no limit. */
function listText(value: unknown): string {
  return Array.isArray(value) ? value.join(',') : 'all'
}

function conditionText(row: Row): string {
  const list = (row['conditions'] ?? []) as readonly Row[]
  switch (row['operator']) {
    case 'IN':
      return `${valueText(row['property'])} in ${(row['values'] as readonly string[]).join(', ')}`
    case 'NOT':
      return `not (${conditionText(row['condition'] as Row)})`
    default:
      return list.map((each) => `(${conditionText(each)})`).join(` ${valueText(row['operator']).toLowerCase()} `)
  }
}

/** The ids of nested conditions are those of the service. */
function withoutIds({ id: _id, ...row }: Row): Row {
  const nested = (value: unknown): unknown => withoutIds(value as Row)
  return {
    ...row,
    ...('condition' in row ? { condition: nested(row['condition']) } : {}),
    ...('conditions' in row ? { conditions: (row['conditions'] as readonly unknown[]).map(nested) } : {}),
  }
}

/** The service shows limits one by one. */
async function listLimits(service: Service, { instanceId }: Scope): Promise<readonly Row[]> {
  const lineItems = await service.rows(`${below(PROVISIONING, instanceId)}/line-items`)
  const limits: Row[] = []
  for (const { activationId } of lineItems) {
    const id = valueText(activationId)
    const path = `${below(SERVICE, instanceId)}/line-items/${segment(id)}/consumption-limit`
    try {
      limits.push({ lineItemId: id, ...((await service.get(path)) as Row) })
    } catch (error) {
      if (!(error instanceof CodedError && error.code === 'NOT_FOUND')) throw error
    }
  }
  return limits
}

async function listUsage(
  service: Service,
  { instanceId, since, until, deviceId, isRefused, limit = Infinity }: Scope,
): Promise<readonly Row[]> {
  const { pieces } = await service.exportUsage({ format: 'ndjson', instanceId, from: since, to: until })
  const rows: Row[] = []
  for await (const line of linesOf(pieces)) {
    const row = parseRepeatableJson(line) as Row
    if (deviceId !== undefined && row['deviceId'] !== deviceId) continue
    if (isRefused === true && !isRefusal(valueText(row['status']))) continue
    rows.push(row)
    if (rows.length > limit) break
  }
  return rows
}
