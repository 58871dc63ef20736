import { Command } from 'commander'
import { AGENT_OFFERS_PATH, type OffersWire, offers } from '../../protocol/local/offers.ts'
import { agentClient, instanceInWords, type SocketFlags, withSocketFlag } from '../local-agent.ts'
import type { Io } from '../io.ts'
import { jsonLine, table, writeLines } from '../lines.ts'
import { type ListFlags, widthFor, withListOptions } from '../lists.ts'

export function command(io: Io): Command {
  const offersCommand = withSocketFlag(new Command('offers')).description(
    'Lists the items that applications can request from the agent now, with the line items that pay for them and their rates in tokens. Rules of access and balances can still refuse a request.',
  )
  return withListOptions(offersCommand, 'print one JSON document').action(async (flags: SocketFlags & ListFlags) => {
    using client = agentClient(flags, io)
    const found = await client.json({ method: 'GET', path: AGENT_OFFERS_PATH }, offers)
    if (flags.json === true) io.stdout.write(`${jsonLine(found)}\n`)
    else writeLines(io.stdout, tableOf(found, widthFor(flags, io)))
  })
}

function tableOf({ instances }: OffersWire, widthMax: number | undefined): readonly string[] {
  const rows = instances.flatMap(({ instanceId, name, items }) =>
    items.flatMap(({ item, version = '-', lineItems }) =>
      lineItems.map(({ activationId, rate, formula = '' }) => [
        item,
        version,
        rate === undefined ? formula : String(rate),
        activationId,
        instanceInWords({ instanceId, name }),
      ]),
    ),
  )
  return table(['ITEM', 'VERSION', 'RATE', 'LINE ITEM', 'INSTANCE'], rows, 'No items.', widthMax)
}
