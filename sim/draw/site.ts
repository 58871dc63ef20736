import { BEGIN, HOUR, type LineItemPlan, MINUTE, type PushWeather, type SitePlan } from '../plan.ts'
import type { Random } from '../world/random.ts'

/** Whole tokens. */
const PLENTY = 1_000_000

export function drawSite(random: Random, devices: number): SitePlan {
  const terms = random.stream('terms')
  const more = random.stream('more')
  const instances = more.chance(0.3) ? 2 : 1
  const scarce = random.chance(0.5)
  const lineItems = Array.from({ length: random.whole(1, 3) }, (_, index): LineItemPlan => ({
    id: `ACT-${index + 1}`,
    instance: index % instances,
    state: 'DEPLOYED',
    series: more.chance(0.2) ? 'S' : null,
    audience: more.pick(['ALL', 'ALL', 'ALL', 'ALL', 'GOLD', 'NOT_GOLD'] as const),
    quantity: scarce ? random.spread(5, 150) : random.spread(100, 5_000),
    overdraft: random.chance(0.08) ? 'UNLIMITED' : random.chance(0.3) ? random.whole(1, 20) : 0,
    frequency: random.chance(0.35)
      ? 'DAILY'
      : more.pick(['NONE', 'NONE', 'NONE', 'WEEKLY', 'MONTHLY', 'YEARLY'] as const),
    // The line item's day changes during the run.
    startsAt: BEGIN - random.whole(20, 23) * HOUR,
    endsAt: BEGIN + (30 + index) * 24 * HOUR,
    goldAllocation: random.chance(0.5) ? random.spread(3, 200) : null,
    limit: random.chance(0.3) ? random.spread(5, 100) : null,
    overspendCap: terms.chance(0.25) ? terms.spread(1, 100) : 0,
  }))
  return {
    devices,
    instances,
    lineItems,
    grantLifetimeMs: random.spread(20 * MINUTE, 7 * 24 * HOUR),
    grantHorizonMs: random.spread(10 * MINUTE, 24 * HOUR),
    policyUsableMs: random.spread(2 * HOUR, 30 * 24 * HOUR),
    syncEveryMs: random.spread(3 * MINUTE, 20 * MINUTE),
    startingGrant: random.spread(1, 100),
    batch: random.spread(1, 100),
    backoffMaxMs: random.spread(20_000, 5 * MINUTE),
    returnOnStop: random.chance(0.4),
    undecidedClock: random.pick(['allow', 'refuse'] as const),
    noRtc: Array.from({ length: devices }, () => random.chance(0.3)),
    driftPpm: Array.from({ length: devices }, () => (random.chance(0.5) ? random.whole(-150, 150) : 0)),
    reserved: Array.from({ length: devices }, () => random.chance(0.4)),
    reservationMax: random.spread(1, 50),
    settleAfterMs: terms.chance(0.4) ? terms.spread(20 * MINUTE, 4 * HOUR) : 30 * 24 * HOUR,
    settleAs: terms.chance(0.7) ? 'CHARGED' : 'RELEASED',
    sessionIntervalMs: [terms.spread(10 * MINUTE, HOUR), null][more.chance(0.3) ? 1 : 0] ?? null,
    retentionMs: more.chance(0.2) ? more.spread(HOUR, 4 * HOUR) : 7 * 24 * HOUR,
    receiptMarginMs: more.chance(0.2) ? more.spread(10 * MINUTE, 4 * HOUR) : 7 * 24 * HOUR,
    wallErrorMs: Array.from({ length: devices }, () => (random.chance(0.3) ? random.whole(-40, 40) * HOUR : 0)),
    nodes: more.chance(0.25) ? 2 : 1,
    push: more.chance(0.5) ? drawPush(more.stream('push')) : null,
  }
}

/**
 * A site whose syncs can share transactions: its accounts are not short unless an administrator lowers a quantity or a
 * request is very large.
 */
export function plainSite(site: SitePlan): SitePlan {
  const lineItems = site.lineItems.map((item) => ({ ...item, quantity: PLENTY, goldAllocation: null, limit: null }))
  return { ...site, lineItems, syncEveryMs: 2 * MINUTE }
}

function drawPush(random: Random): PushWeather {
  const some = (most: number): number => (random.chance(0.5) ? random.fraction() * most : 0)
  return { lost: some(0.8), doubled: some(0.5), late: some(0.5), lateMax: random.spread(10_000, 2 * HOUR) }
}
