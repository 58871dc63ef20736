/** The forms for the consumption limit of a line item: one sets it, the other one removes it. */
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import { LIMIT_FREQUENCIES, consumptionLimitBody, usualReset } from '../../protocol/service/consumption-limits.ts'
import type { LineItemPlace } from '../service-api/show-line-items.ts'
import {
  type ConsumptionLimitTerms,
  removeConsumptionLimit,
  setConsumptionLimit,
  termsOf,
} from '../service-api/set-consumption-limit.ts'
import { requireLineItem } from '../storage/require-record.ts'
import type { Reader } from '../storage/store.ts'
import { type Edit, fieldText, formPart, instantOf, numberOf, refusalOf } from './edit.ts'
import { type Fields, type Problem, Inputs, TIME } from './inputs.ts'
import { type Page, type View, exactTextOf, hrefOf, ofInstance } from './page.ts'

const EDIT = { next: '/line-items', concerns: 'INSTANCE', needsConfirmation: true } as const

export const LIMIT_EDIT: Edit = {
  ...EDIT,
  path: '/line-items/limit',
  save: async ({ store, instanceId, now }, fields) => {
    const place = placeOf(instanceId, fields)
    const current = await store.read((reader) => currentOf(reader, place, now))
    const parsed = consumptionLimitBody.safeParse(limitOf(fields, current, now))
    if (!parsed.success) throw refusalOf(parsed.error)
    await setConsumptionLimit(store, place, parsed.data, now)
  },
  refused: async (view, fields, problems) =>
    ofInstance(view, 'The limit was not saved', ({ id }) => limitForm(view, id, fields, problems)),
}

export const LIMIT_REMOVAL: Edit = {
  ...EDIT,
  path: '/line-items/limit/remove',
  save: async ({ store, instanceId, now }, fields) => {
    await removeConsumptionLimit(store, placeOf(instanceId, fields), now)
  },
  refused: async (view, fields, problems) =>
    ofInstance(view, 'The limit was not removed', ({ id }) => removalForm(view, id, fields, problems)),
}

export function editLimitPage(view: View): Promise<Page> {
  const { lineItem = '' } = view.query
  return ofInstance(view, `Consumption limit of ${lineItem}`, async ({ id }) => {
    const current = await currentOf(view.reader, { instanceId: id, lineItemId: lineItem }, view.now)
    const { limit, frequency } = current ?? {}
    const fields = {
      lineItem,
      limit: limit === undefined ? '' : formatMicro(limit),
      frequency: frequency ?? 'MONTHLY',
    }
    return limitForm(view, id, fields, [])
  })
}

export function removeLimitPage(view: View): Promise<Page> {
  const { lineItem = '' } = view.query
  return ofInstance(view, `Remove the limit of ${lineItem}?`, ({ id }) => removalForm(view, id, { lineItem }, []))
}

function placeOf(instanceId: string, { lineItem: lineItemId = '' }: Fields): LineItemPlace {
  return { instanceId, lineItemId }
}

/** @throws CodedError NOT_FOUND for an unknown line item */
async function currentOf(
  reader: Reader,
  { instanceId, lineItemId }: LineItemPlace,
  now: number,
): Promise<ConsumptionLimitTerms | undefined> {
  await requireLineItem(reader, instanceId, lineItemId)
  return termsOf(await reader.consumptionLimits.get(instanceId, lineItemId), now)
}

/** The body of the service's operation. */
function limitOf(fields: Fields, current: ConsumptionLimitTerms | undefined, now: number): unknown {
  const frequency = fieldText(fields, 'frequency')
  const nextReset = instantOf(fields, 'nextReset') ?? usualReset(frequency, current, now)
  return { limit: numberOf(fields, 'limit'), frequency, nextReset }
}

function inWords({ limit, frequency, nextReset }: ConsumptionLimitTerms): string {
  return `${formatMicro(limit)} tokens per requester, ${frequency.toLowerCase()}, next reset ${exactTextOf(nextReset)} UTC`
}

async function limitForm(view: View, instanceId: string, fields: Fields, problems: readonly Problem[]): Promise<Html> {
  const current = await currentOf(view.reader, placeOf(instanceId, fields), view.now)
  const inputs = new Inputs(fields, problems)
  const content = html`${inputs.hidden('lineItem')}
  ${inputs.input({ name: 'limit', label: 'Tokens per requester' }, AMOUNT)}
  ${inputs.select(
    { name: 'frequency', label: 'Resets' },
    LIMIT_FREQUENCIES.map((each) => [each, each]),
  )}
  ${inputs.input({ name: 'nextReset', label: 'Next reset, UTC, can be empty' }, TIME)}`
  const note =
    'Each requester, which is a type and a value, may use this many tokens of the line item until the next reset. Without a next reset, the limit keeps the one that it has; a new limit, or one with another frequency, resets at the end of this day, week, month or year. With another frequency or next reset, the counts of all requesters start at zero. With another amount only, they stay.'
  const title = current === undefined ? 'New limit' : `Now ${inWords(current)}`
  const removal = hrefOf(view, LIMIT_REMOVAL.path, { lineItem: inputs.value('lineItem') })
  return html`${formPart(view, LIMIT_EDIT, { title, inputs, content, note })}
  ${current === undefined ? '' : html`<p><a href="${removal}">Remove the limit</a></p>`}`
}

async function removalForm(
  view: View,
  instanceId: string,
  fields: Fields,
  problems: readonly Problem[],
): Promise<Html> {
  const current = await currentOf(view.reader, placeOf(instanceId, fields), view.now)
  const inputs = new Inputs(fields, problems)
  if (current === undefined) {
    return section(
      'edit',
      'None',
      html`${inputs.problems()}
        <p>The line item has no consumption limit.</p>
        <p><a href="${hrefOf(view, EDIT.next)}">Line items</a></p>`,
    )
  }
  const content = html`${inputs.hidden('lineItem')}`
  const note =
    'Each requester may then use all tokens that the line item has. If a limit is set again, the counts start at zero.'
  return formPart(view, LIMIT_REMOVAL, { title: `Now ${inWords(current)}`, inputs, content, note, verb: 'remove' })
}

const AMOUNT = html`type="number" min="0.000001" step="0.000001" required`
