/** Shows how a request would be decided now, and why. Charges nothing, and writes nothing. */
import type { z } from 'zod'
import { accountInWords, tokensInWords } from '../../core/accounts/in-words.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import type { ItemOutcome, RejectionDetail } from '../../core/rules/decision.ts'
import { ITEM_CHECKS, REFUSAL_REASONS } from '../../core/rules/refusal-reasons.ts'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { firstIssue } from '../../protocol/errors.ts'
import { accessRequestBody, requestOf } from '../../protocol/service/access-request.ts'
import { digitsProblem, typedNumber } from '../../protocol/typed-number.ts'
import { decideWithoutCharge } from '../policy/decide-over-pools.ts'
import type { LoadedPolicy } from '../policy/load-policy.ts'
import { Inputs, NO_NUMBER } from './inputs.ts'
import { type Page, type View, instanceField, numeric, ofInstance, tableOf } from './page.ts'

export function tryPage(view: View): Promise<Page> {
  return ofInstance(view, 'Try a request', async (_instance, loaded) => {
    const { query } = view
    return html`${section('request', 'Request', formPart(view))}
    ${query['item'] === undefined ? '' : await resultPart(view, loaded)}`
  })
}

function formPart(view: View): Html {
  const inputs = new Inputs({ type: 'user', count: '1', ...view.query })
  const field = (name: string, label: string): Html => inputs.input({ name, label }, html`required`)
  const lines = (name: string, label: string): Html => inputs.area({ name, label }, html`rows="3"`)
  return html`<form method="get" action="${view.root}/try">
      ${instanceField(view)} ${field('type', 'Type of requester')} ${field('value', 'Requester')}
      ${field('item', 'Item')} ${inputs.input({ name: 'version', label: 'Version, if any' })} ${field('count', 'Count')}
      ${lines('dictionary', 'Dictionary, one name=value per line')}
      ${lines('variables', 'Variables of formulas, one name=number per line')}
      <button>Try</button>
    </form>
    <p class="soft">The cloud decides with the tokens that are left now. Nothing is charged or recorded.</p>`
}

async function resultPart(view: View, loaded: LoadedPolicy): Promise<Html> {
  const { query, reader, now } = view
  const { type, value } = query
  for (const name of ['dictionary', 'variables'] as const) {
    const odd = linesOf(query[name]).find((line) => line.indexOf('=') < 1)
    if (odd !== undefined) return problemPart(`${LABELS[name]}: the line “${odd}” is not name=value`)
  }
  const count = (query['count'] ?? '').trim()
  const variables = pairsOf(query['variables'])
  const numbers = [
    [LABELS.count, count],
    ...variables.map(([name, number]) => [`${LABELS.variables}, ${name}`, number]),
  ]
  for (const [label = '', number = ''] of numbers) {
    const problem = digitsProblem(number) ?? (Number.isNaN(typedNumber(number)) ? NO_NUMBER : undefined)
    if (problem !== undefined) return problemPart(`${label}: ${problem}`)
  }
  const body = accessRequestBody['v1.1'].safeParse({
    requester: { type, value, dictionary: Object.fromEntries(pairsOf(query['dictionary'])) },
    requestedItems: [
      {
        item: query['item'],
        ...((query['version'] ?? '') === '' ? {} : { version: query['version'] }),
        count: typedNumber(count),
        ...(variables.length === 0 ? {} : { variables: numbersOf(variables) }),
      },
    ],
  })
  if (!body.success) return problemPart(problemIn(body.error))
  const { items } = await decideWithoutCharge(reader, loaded, requestOf(body.data), now)
  return section('result', 'Decision', html`${items.map((item) => outcomePart(item, loaded))}`)
}

const LABELS = {
  type: 'Type of requester',
  value: 'Requester',
  dictionary: 'Dictionary',
  item: 'Item',
  version: 'Version',
  count: 'Count',
  variables: 'Variables of formulas',
}

/** With the label of the input, and the name of a line in it. */
function problemIn(error: z.ZodError): string {
  const { path, message } = firstIssue(error)
  const words = path.map(String)
  const labels = new Map(Object.entries(LABELS))
  const at = words.findIndex((word) => labels.has(word))
  const [field = '', ...line] = words.slice(at)
  return `${[labels.get(field) ?? 'The request', ...line].join(', ')}: ${message}`
}

function problemPart(problem: string): Html {
  return section('result', 'Decision', html`<p class="problem" role="alert">${problem}</p>`)
}

function linesOf(text = ''): readonly string[] {
  return text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '')
}

function pairsOf(text: string | undefined): readonly (readonly [name: string, value: string])[] {
  return linesOf(text).map(
    (line) => [line.slice(0, line.indexOf('=')).trim(), line.slice(line.indexOf('=') + 1).trim()] as const,
  )
}

function numbersOf(pairs: readonly (readonly [name: string, number: string])[]): Readonly<Record<string, number>> {
  return Object.fromEntries(pairs.map(([name, number]) => [name, typedNumber(number)]))
}

function outcomePart(item: ItemOutcome, loaded: LoadedPolicy): Html {
  if (item.outcome === 'NOT_CHARGED') return html`<p>Not charged: another item is refused.</p>`
  if (item.outcome === 'REFUSED') {
    const { label, check } = REFUSAL_REASONS[item.reason]
    const rows = item.rejectionDetails.map((detail) => [detail.lineItemId, whyInWords(detail, loaded)])
    return html`<p class="refusing" role="status"><strong>Refused: ${label}</strong> (${item.reason})</p>
      <p>The check that failed: ${ITEM_CHECKS[check]}.</p>
      ${rows.length === 0 ? '' : tableOf('Line items that do not pay', ['Line item', 'Why it does not pay'], rows)}`
  }
  const rows = item.shares.map(({ lineItemId, actionId, rate, charged }) => [
    lineItemId,
    actionId === null ? 'no rules: all are allowed' : actionName(loaded, lineItemId, actionId),
    formatDecimal(rate),
    tokensInWords(charged),
  ])
  const columns = ['Line item', 'Allowed by', numeric('Rate'), numeric('Tokens')]
  return html`<p class="ok" role="status"><strong>Granted for ${tokensInWords(item.total)} tokens</strong></p>
    ${tableOf('Line items that pay', columns, rows)}`
}

function actionName({ lineItems }: LoadedPolicy, lineItemId: string, actionId: string): string {
  const action = lineItems.get(lineItemId)?.actions.find(({ id }) => id === actionId)
  return `action ${action?.name ?? actionId}`
}

const WHY: Readonly<Record<RejectionDetail['why'], string>> = {
  NOT_ELASTIC: 'it is not elastic',
  NOT_DEPLOYED: 'it is not deployed',
  NOT_STARTED: 'its window has not started',
  ENDED: 'its window has ended',
  CLOCK_UNDECIDED: 'the clock cannot tell whether its window is open',
  SERIES_DOES_NOT_RATE_ITEM: 'the rate table of its series does not have the item',
  SERIES_HAS_NO_TABLE: 'its series has no rate table in effect',
  NO_PERIOD: 'no period of it contains this instant',
  FORMULA_VARIABLE_MISSING: 'its formula needs a variable that the request does not give',
  FORMULA_DIVIDES_BY_ZERO: 'its formula divides by zero',
  FORMULA_OVERFLOWS: 'the value of its formula is too large',
  FORMULA_IS_NEGATIVE: 'the value of its formula is below zero',
  FORMULA_UNDEFINED: 'its formula has no value for these variables',
  RULE_DENIES: 'an action denies the requester',
  NO_RULE_MATCHES: 'no action allows the requester',
  RULE_ERROR: 'the condition of an action cannot be evaluated',
  TOO_FEW_TOKENS: 'its pool has too few tokens',
  ALLOCATION_TOO_SMALL: 'the allocation of the action has too few tokens',
  LIMIT_TOO_SMALL: 'the consumption limit of the requester leaves too few tokens',
}

function whyInWords(detail: RejectionDetail, loaded: LoadedPolicy): string {
  const { why, lineItemId, actionId, account, needed, left } = detail
  const by = actionId === undefined ? '' : ` (${actionName(loaded, lineItemId, actionId)})`
  const amounts =
    account === undefined || needed === undefined || left === undefined
      ? ''
      : `: ${tokensInWords(needed)} needed, ${tokensInWords(left)} left in ${accountInWords(account)}`
  return `${WHY[why]}${by}${amounts}`
}
