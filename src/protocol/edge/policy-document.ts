/**
 * The signed policy of one instance: everything that a device needs to decide alone until the next revision. Unknown
 * fields are refused, so that a device never applies half of a rule.
 */
import { z } from 'zod'
import { ENGINE, type Engine } from '../../core/engine.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import type { Condition, NamedCondition, Policy, RatedItem, RateTable } from '../../core/rules/policy.ts'
import { publicJwk } from '../signing.ts'
import { engineQuery, engineVersion } from './engines.ts'
import { decimalText, formulaText, instant, microText, plainText, uuid } from '../wire.ts'

/** The policy as a compact JWS. Its ETag is the quoted revision; a matching `If-None-Match` returns 304. */
export const POLICY_MEDIA_TYPE = 'application/jose'

/** Default `session.charge.period`. Source: documentation on configuration. */
const DEFAULT_SESSION_INTERVAL_MS = 60 * 60 * 1000

export const policyTag = (revision: number): string => `"${revision}"`

export interface PolicyRequest {
  readonly instanceId: string
  /** 0: none. */
  readonly knownRevision: number
  readonly engine: Engine
}

export function policyRequest(
  edgeUrl: string,
  { instanceId, knownRevision, engine }: PolicyRequest,
): { readonly url: string; readonly headers: Readonly<Record<string, string>> } {
  return {
    url: `${edgeUrl.replace(/\/+$/, '')}/instances/${encodeURIComponent(instanceId)}/policy?${engineQuery(engine)}`,
    headers: knownRevision === 0 ? {} : { 'if-none-match': policyTag(knownRevision) },
  }
}

const period = z.strictObject({ index: z.int().min(0), from: instant.nullable(), until: instant.nullable() })

const condition: z.ZodType<Condition> = z.lazy(() =>
  z.discriminatedUnion('operator', [
    z.strictObject({ operator: z.enum(['AND', 'OR']), conditions: z.array(condition).min(1) }),
    z.strictObject({ operator: z.literal('NOT'), condition }),
    z.strictObject({ operator: z.literal('IN'), property: z.string(), values: z.array(z.string()) }),
  ]),
)

const action = z.strictObject({
  id: uuid,
  name: z.string().nullable(),
  conditionId: uuid.nullable(),
  effect: z.enum(['ALLOW', 'DENY']),
  allocation: microText.nullable(),
})

const lineItem = z.strictObject({
  id: plainText(256).min(1),
  state: z.enum(['DEPLOYED', 'INACTIVE', 'OBSOLETE']),
  elastic: z.boolean(),
  rateTableSeries: z.string(),
  startsAt: instant,
  endsAt: instant,
  quantity: microText,
  overdraft: z.union([z.literal('UNLIMITED'), microText]),
  periods: z.array(period).min(1),
  actions: z.array(action),
  consumptionLimit: z.strictObject({ limit: microText, periods: z.array(period).min(1) }).nullable(),
  /** Behavior when the grant is used up and the cloud is unreachable. Absent: refuse. */
  offline: z
    .discriminatedUnion('policy', [
      z.strictObject({ policy: z.literal('refuse') }),
      z.strictObject({ policy: z.literal('essential'), overspendCap: microText }),
    ])
    .optional(),
})

const ratedItem = z.union([
  z.strictObject({ name: z.string(), version: z.string(), rate: decimalText }),
  z.strictObject({ name: z.string(), version: z.string(), formula: formulaText }),
])

export const policyDocument = z.strictObject({
  format: z.literal(1),
  instanceId: uuid,
  instanceName: z.string(),
  revision: z.int().min(1),
  /** Engine of the cloud that made this document, and the oldest agent engine that can use it. */
  engine: engineVersion,
  oldestEngine: engineVersion,
  issuedAt: instant,
  /** How long the device can use this document without contact to the cloud, ms from `issuedAt`. */
  usableForMs: z.int().min(0),
  /** How long a grant should last without contact, ms: top-ups are burn rate × this. */
  grantHorizonMs: z.int().min(0),
  /** Charge period of sessions. */
  sessionIntervalMs: z.int().min(1).default(DEFAULT_SESSION_INTERVAL_MS),
  timezoneTolerant: z.boolean(),
  undecidedClock: z.enum(['allow', 'refuse']),
  lineItems: z
    .array(lineItem)
    // A duplicate would charge one account twice.
    .refine((items) => new Set(items.map(({ id }) => id)).size === items.length, 'two line items have the same id'),
  conditions: z.array(z.strictObject({ id: uuid, name: z.string().nullable(), condition })),
  rateTables: z.array(
    z.strictObject({
      series: z.string(),
      version: z.string(),
      effectiveFrom: instant,
      items: z.array(ratedItem),
    }),
  ),
  /** Keys that the device trusts from this revision on, including the signing key. */
  trustedKeys: z.array(publicJwk).min(1),
})

export type PolicyDocument = z.infer<typeof policyDocument>
export type PolicyDocumentWire = z.input<typeof policyDocument>

export function policyOf(document: PolicyDocument): Policy {
  return {
    instanceId: document.instanceId,
    revision: document.revision,
    timezoneTolerant: document.timezoneTolerant,
    undecidedClock: document.undecidedClock,
    lineItems: document.lineItems,
    conditions: document.conditions.map(({ id, name, condition }): NamedCondition => ({ id, name, ...condition })),
    rateTables: document.rateTables,
  }
}

/** The inverse of parsing and {@link policyOf}. */
export function policyToWire(
  policy: Policy,
  terms: Pick<PolicyDocument, 'instanceName' | 'issuedAt' | 'usableForMs' | 'grantHorizonMs' | 'trustedKeys'> &
    Partial<Pick<PolicyDocument, 'sessionIntervalMs'>>,
  engine: Engine = ENGINE,
): PolicyDocumentWire {
  return {
    format: 1,
    instanceId: policy.instanceId,
    instanceName: terms.instanceName,
    revision: policy.revision,
    engine: engine.version,
    oldestEngine: engine.oldest,
    issuedAt: terms.issuedAt,
    usableForMs: terms.usableForMs,
    grantHorizonMs: terms.grantHorizonMs,
    sessionIntervalMs: terms.sessionIntervalMs,
    timezoneTolerant: policy.timezoneTolerant,
    undecidedClock: policy.undecidedClock,
    ...rulesToWire(policy),
    rateTables: rateTablesToWire(policy.rateTables),
    trustedKeys: terms.trustedKeys,
  }
}

export function rulesToWire({
  lineItems,
  conditions,
}: Pick<Policy, 'lineItems' | 'conditions'>): Pick<PolicyDocumentWire, 'lineItems' | 'conditions'> {
  return {
    lineItems: lineItems.map((item) => ({
      id: item.id,
      state: item.state,
      elastic: item.elastic,
      rateTableSeries: item.rateTableSeries,
      startsAt: item.startsAt,
      endsAt: item.endsAt,
      quantity: String(item.quantity),
      overdraft: String(item.overdraft),
      periods: item.periods.map(({ index, from, until }) => ({ index, from, until })),
      actions: item.actions.map(({ id, name, conditionId, effect, allocation }) => ({
        id,
        name,
        conditionId,
        effect,
        allocation: allocation === null ? null : String(allocation),
      })),
      consumptionLimit:
        item.consumptionLimit === null
          ? null
          : {
              limit: String(item.consumptionLimit.limit),
              periods: item.consumptionLimit.periods.map(({ index, from, until }) => ({ index, from, until })),
            },
      ...(item.offline?.policy === 'essential'
        ? { offline: { policy: 'essential', overspendCap: String(item.offline.overspendCap) } }
        : {}),
    })),
    conditions: conditions.map((named) => ({ id: named.id, name: named.name, condition: bare(named) })),
  }
}

export function rateTablesToWire(tables: readonly RateTable[]): PolicyDocumentWire['rateTables'] {
  return tables.map(({ series, version, effectiveFrom, items }) => ({
    series,
    version,
    effectiveFrom,
    items: items.map(ratedItemToWire),
  }))
}

function ratedItemToWire({ name, version, rate, formula }: RatedItem): z.input<typeof ratedItem> {
  return rate === undefined ? { name, version, formula } : { name, version, rate: formatDecimal(rate) }
}

function bare(condition: Condition): Condition {
  switch (condition.operator) {
    case 'AND':
    case 'OR':
      return { operator: condition.operator, conditions: condition.conditions.map(bare) }
    case 'NOT':
      return { operator: 'NOT', condition: bare(condition.condition) }
    case 'IN':
      return { operator: 'IN', property: condition.property, values: condition.values }
  }
}
