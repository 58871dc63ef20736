import type { Candidate, Offer, PolicyView } from '../../core/rules/compile.ts'
import type { AccessRequest, ClockReading, Decision } from '../../core/rules/decision.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { OffersWire } from '../../protocol/local/offers.ts'
import { exactNumber } from '../../protocol/wire.ts'
import { type RulesDeps, requireRules } from './local-decisions.ts'

/** Numbers are exact decimal text: serialize with JSON.stringify. @throws CodedError of {@link requireRules} */
export function currentOffers(deps: RulesDeps, reading: ClockReading): OffersWire {
  const served = deps.link.status().policies
  if (served.length === 0) throw new CodedError('NOT_ENROLLED', 'this device is not enrolled yet')
  const instances: OffersWire['instances'] = []
  let problem: unknown
  for (const { instanceId } of served) {
    try {
      const { document, compiled } = requireRules(deps, instanceId.toLowerCase(), reading)
      const items = compiled.at(reading).offers().map(offerToWire)
      const { instanceName: name, revision: policyRevision } = document
      instances.push({ instanceId: document.instanceId, name, policyRevision, items })
    } catch (error) {
      problem ??= error
    }
  }
  if (instances.length === 0) throw problem
  return { instances }
}

function offerToWire({ name, version, candidates }: Offer): OffersWire['instances'][number]['items'][number] {
  return { item: name, ...(version === '' ? {} : { version }), lineItems: candidates.map(payerToWire) }
}

function payerToWire({ lineItem, rate }: Candidate) {
  const { id: activationId } = lineItem
  return rate.kind === 'FIXED'
    ? { activationId, rate: exactNumber(rate.rate) }
    : { activationId, formula: rate.formula }
}

const ADVISED_ITEMS_MAX = 3
const NAMED_VERSIONS_MAX = 5

/** Names what would have been found instead of unknown items, in ASCII. Undefined: nothing similar exists. */
export function adviceAfter(view: PolicyView, request: AccessRequest, { items }: Decision): string | undefined {
  const unknown = new Set<string>()
  for (const [index, outcome] of items.entries()) {
    const name = request.items[index]?.name
    if (outcome.outcome === 'REFUSED' && outcome.reason === 'ITEM_NOT_RATED' && name !== undefined) unknown.add(name)
  }
  if (unknown.size === 0) return undefined
  const advice = [...unknown].slice(0, ADVISED_ITEMS_MAX).flatMap((name) => versionsOf(view, name))
  return advice.length === 0 ? undefined : advice.join('; ')
}

/** By name, ignoring case: `LaserCut exists as version 1.0`. */
function versionsOf(view: PolicyView, name: string): readonly string[] {
  const wanted = name.toLowerCase()
  const similar = view.offers().filter((offer) => offer.name.toLowerCase() === wanted)
  return [...Map.groupBy(similar, (offer) => offer.name)].map(([known, offers]) => {
    const versions = offers.slice(0, NAMED_VERSIONS_MAX).map(({ version }) => version)
    const named = versions.filter((version) => version !== '').map(ascii)
    const list = named.length === 0 ? [] : [`as version ${named.join(', ')}`]
    if (versions.includes('')) list.push('without a version')
    return `${ascii(known)} exists ${list.join(' and ')}`
  })
}

/** For a header: everything else as in JSON. */
function ascii(text: string): string {
  return text.replaceAll(/[^\x20-\x7e]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
}
