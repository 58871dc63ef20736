/** Exit code 0 if the request is allowed, 1 if it is refused. */
import { Command } from 'commander'
import { z } from 'zod'
import type { Call } from '../../client/call.ts'
import { parseExactJson } from '../../client/exact-json.ts'
import { refusal } from '../../client/http.ts'
import { ITEM_STATUS } from '../../protocol/service/status.ts'
import { CodedError, firstProblem } from '../../protocol/errors.ts'
import { LOCAL_HEADERS } from '../../protocol/local/headers.ts'
import {
  agentClient,
  localInstance,
  patient,
  sameSocket,
  type SocketFlags,
  withInstanceOption,
  withSocketFlag,
} from '../local-agent.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { itemRequestBody, type ItemRequestFlags, withItemRequest } from '../item-request.ts'
import { writeLines } from '../lines.ts'

interface AccessFlags extends SocketFlags, ItemRequestFlags {
  readonly instance?: string
  readonly item: string
}

const REFUSED = 1

const NOT_RATED = ITEM_STATUS.ITEM_NOT_RATED['v1.1']

export function command(io: Io): Command {
  const described = withSocketFlag(new Command('access'))
    .description(
      'Sends an access request to the agent of this device, as an application would, and shows the response.',
    )
    .requiredOption('--item <name>', 'item to request')
  const access = withInstanceOption(withItemRequest(described))
    .option('--json', 'print the response as JSON')
    .action(async (flags: AccessFlags) => {
      using client = agentClient(flags, io)
      const path = `/elastic/api/v1.1/instances/${await localInstance(client, flags.instance)}/access-request`
      const call: Call = { method: 'POST', path, body: itemRequestBody(flags.item, flags) }
      const response = await client.call(await patient(client, call))
      if (response.status !== 200) throw refusal(call, response)
      const { correlationId, allowed, code, description } = judge(response.text)
      const advice = response.headers[LOCAL_HEADERS.advice]
      writeLines(io.stdout, [flags.json === true ? response.text : description])
      if (typeof advice === 'string') writeLines(io.stderr, [advice])
      else if (code === NOT_RATED) writeLines(io.stderr, [`All items: tallygate offers${sameSocket(flags)}`])
      if (allowed) return
      writeLines(io.stderr, [`Each check: tallygate explain ${correlationId}${sameSocket(flags)}`])
      io.exitWith(REFUSED)
    })
  return examples(access, [
    'tallygate access --item LaserCut --item-version 1.0 --count 2.5 --requester user:anna',
    'tallygate access --item LaserCut --requester user:anna --attribute department=sales --json',
    'tallygate access --instance Workshop --item LaserCut --item-version 1.0 --requester user:anna',
  ])
}

const answer = z.object({
  correlationId: z.string(),
  requestedItems: z.tuple([
    z.object({
      status: z.object({ code: z.string(), description: z.string() }),
      totalTokensCharged: z.string(),
      lineItems: z.array(z.object({ activationId: z.string(), tokensCharged: z.string() })),
    }),
  ]),
})

/** The first digit of the status code decides whether the item is allowed. */
function judge(text: string) {
  const parsed = answer.safeParse(parseExactJson(text))
  if (!parsed.success) throw new CodedError('ANSWER_UNEXPECTED', firstProblem(parsed.error, 'answer'))
  const { correlationId, requestedItems } = parsed.data
  const [{ status, totalTokensCharged, lineItems }] = requestedItems
  const { code } = status
  const allowed = code.startsWith('1')
  if (!allowed) return { correlationId, allowed, code, description: `refused (${code}): ${status.description}` }
  const parts = lineItems.map((part) => `, ${part.tokensCharged} from ${part.activationId}`)
  const total = totalTokensCharged === '1' ? '1 token' : `${totalTokensCharged} tokens`
  return { correlationId, allowed, code, description: `allowed: ${total}${parts.join('')}` }
}
