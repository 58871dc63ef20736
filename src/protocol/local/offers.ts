import { z } from 'zod'
import { uuid } from '../wire.ts'

/** `GET` on the agent's socket. */
export const AGENT_OFFERS_PATH = '/tallygate/v1/offers'

const payer = z
  .strictObject({
    activationId: z.string(),
    rate: z.number().min(0).optional().meta({ description: 'Tokens per unit of count.' }),
    formula: z.string().optional().meta({ description: 'Instead of a rate: computes it from the variables.' }),
  })
  .meta({ id: 'Payer', description: 'A line item, with either its rate or its formula for the item.' })

const offeredItem = z
  .strictObject({
    item: z.string(),
    version: z.string().optional(),
    lineItems: z.array(payer).min(1).meta({ description: 'In the sequence in which they are charged.' }),
  })
  .meta({
    id: 'OfferedItem',
    description: 'Request it with exactly this name and version. Rules of access and balances can still refuse it.',
  })

export const offers = z
  .strictObject({
    instances: z.array(
      z.strictObject({
        instanceId: uuid,
        name: z.string().meta({ description: 'Short name of the instance.' }),
        policyRevision: z.int().min(1),
        items: z.array(offeredItem),
      }),
    ),
  })
  .meta({ id: 'Offers', description: 'Instances whose rules cannot be used now are missing.' })
export type OffersWire = z.input<typeof offers>
