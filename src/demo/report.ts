import { grouped } from '../core/accounts/in-words.ts'
import { formatMicro, type Micro } from '../core/pricing/amount.ts'
import { REFUSAL_REASONS, type RefusalReason } from '../core/rules/refusal-reasons.ts'
import type { ItemStatus } from '../protocol/service/status.ts'
import { countOutcomes, type DemoResult, type Phase, succeeded } from './result.ts'

/** Outcomes of items, in table order. A session's `NOT_CHARGED` never occurs here. */
const OUTCOMES: readonly (readonly [ItemStatus, string])[] = [
  ['GRANTED', 'allowed'],
  ...(Object.keys(REFUSAL_REASONS) as RefusalReason[]).map(
    (reason) => [reason, `denied: ${REFUSAL_REASONS[reason].label}`] as const,
  ),
]

export function reportText(result: DemoResult): readonly string[] {
  const answered = result.phases.flatMap((phase) => phase.answered)
  const counts = [...result.phases.map((phase) => countOutcomes(phase.answered)), countOutcomes(answered)]
  const decisions = table([
    ['requested items', ...result.phases.map(({ name }) => name), 'all day'],
    ['', ...result.phases.map(({ network }) => network), ''],
    ...OUTCOMES.filter(([outcome]) => counts.at(-1)?.has(outcome) === true).map(([outcome, label]) => [
      label,
      ...counts.map((count) => grouped(count.get(outcome) ?? 0)),
    ]),
    ['requests', ...[...result.phases.map((phase) => phase.answered), answered].map(({ length }) => grouped(length))],
  ])
  const tokens = table([
    ['tokens charged', 'sent to', 'ledger of', 'ledger of', 'used in the', 'usage', ''],
    ['', 'applications', 'the device', 'the cloud', 'service API', 'export', 'difference'],
    ...result.comparisons.map(({ lineItemId, part, answered, device, cloud, service, exported, difference }) => [
      part === null ? lineItemId : `  of which ${part}`,
      ...[answered, device, cloud, service, exported, difference].map(tokensText),
    ]),
  ])
  return [...decisions, '', ...tokens, '', ...conclusion(result)]
}

function conclusion(result: DemoResult): readonly string[] {
  const wrong = result.wrong.map(({ request, items }) => {
    const [item] = items.filter(({ must, outcome }) => must !== undefined && must !== outcome)
    return `WRONG: ${request.at} ${request.requester}: ${item?.outcome ?? ''} instead of ${item?.must ?? ''}`
  })
  const differing = result.comparisons.filter(({ difference }) => difference !== 0n)
  const disturbed = [...result.disturbances].map(([kind, count]) => `${kind} ${times(count)}`)
  const killed = result.kills === 0 ? [] : [`the agent killed ${times(result.kills)}`]
  const happened = disturbed.length > 0 ? disturbed : killed
  const despite = happened.length === 0 ? '' : `, with ${happened.join(', ')}`
  if (succeeded(result)) return [`The ledgers agree to the micro-token${despite}. ${seconds(result.totalMs)} s in all.`]
  return [
    ...wrong.slice(0, 10),
    ...(wrong.length > 10 ? [`... and ${wrong.length - 10} more`] : []),
    ...(result.alarms > 0 ? ['THE CLOUD REPORTS AN HONEST DEVICE AS COPIED OR WRONG.'] : []),
    ...(differing.length > 0
      ? [
          `THE LEDGERS DIFFER on ${differing.map(({ lineItemId, part }) => (part === null ? lineItemId : `${lineItemId}, ${part}`)).join(', ')}.`,
        ]
      : []),
    ...(result.comparisons.length === 0 ? ['No ledger has an account, so nothing was compared.'] : []),
  ]
}

/** For programs. Amounts are micro-tokens as integer text. */
export function reportJson(result: DemoResult): Record<string, unknown> {
  return {
    succeeded: succeeded(result),
    phases: result.phases.map((phase: Phase) => ({
      name: phase.name,
      network: phase.network,
      requests: phase.answered.length,
      repeats: phase.answered.reduce((sum, { repeats }) => sum + repeats, 0),
      ms: Math.round(phase.ms),
      outcomes: Object.fromEntries(countOutcomes(phase.answered)),
    })),
    accounts: result.comparisons.map(({ account, lineItemId, part, ...amounts }) => {
      const texts = Object.entries(amounts).map(([side, amount]) => [side, amount === null ? null : String(amount)])
      return { account, lineItemId, part, ...(Object.fromEntries(texts) as Record<string, string | null>) }
    }),
    wrong: result.wrong.map(({ request, items }) => ({ ...request, outcomes: items.map(({ outcome }) => outcome) })),
    alarms: result.alarms,
    kills: result.kills,
    disturbances: Object.fromEntries(result.disturbances),
    drainMs: Math.round(result.drainMs),
    totalMs: Math.round(result.totalMs),
    directory: result.directory,
  }
}

function table(rows: readonly (readonly string[])[]): readonly string[] {
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0))) ?? []
  const lines = rows.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  )
  const rule = '─'.repeat(widths.reduce((sum, width) => sum + width, 0) + 2 * (widths.length - 1))
  return [...lines.slice(0, 2), rule, ...lines.slice(2)]
}

function tokensText(amount: Micro | null): string {
  return amount === null ? '' : grouped(formatMicro(amount))
}

export function seconds(ms: number): string {
  return (ms / 1000).toFixed(1)
}

function times(count: number): string {
  return count === 1 ? 'once' : count === 2 ? 'twice' : `${count} times`
}
