/** The response to an access request of `access` or `session request`. */
import { z } from 'zod'
import { parseExactJson } from '../client/exact-json.ts'
import { type Answer, refusal } from '../client/http.ts'
import type { Call } from '../client/call.ts'
import { parseJson } from '../protocol/parse-json.ts'
import { LOCAL_HEADERS } from '../protocol/local/headers.ts'
import { ITEM_STATUS } from '../protocol/service/status.ts'
import type { Io } from './io.ts'
import { writeLines } from './lines.ts'
import { type SocketFlags, sameSocket } from './local-agent.ts'

const accessAnswer = z.object({
  correlationId: z.string(),
  requestedItems: z
    .array(
      z.object({
        status: z.object({ code: z.string(), description: z.string() }),
        totalTokensCharged: z.string(),
        lineItems: z.array(z.object({ activationId: z.string(), tokensCharged: z.string() })),
      }),
    )
    .max(1),
})

const REFUSED = 1

const NOT_RATED = ITEM_STATUS.ITEM_NOT_RATED['v1.1']

/** Exit code 1 if the item is refused. @throws CodedError if the response is not one to an access request */
export function showAccessAnswer(call: Call, response: Answer, flags: SocketFlags, io: Io): void {
  const { text, headers } = response
  const parsed = accessAnswer.safeParse(parseJson(text) === undefined ? undefined : parseExactJson(text))
  if (!parsed.success) throw refusal(call, response)
  const { correlationId, requestedItems } = parsed.data
  const [item] = requestedItems
  writeLines(io.stdout, [flags.json === true ? text : item === undefined ? 'no item' : descriptionOf(item)])
  if (item === undefined) return
  const { code } = item.status
  const advice = headers[LOCAL_HEADERS.advice]
  if (typeof advice === 'string') writeLines(io.stderr, [advice])
  else if (code === NOT_RATED) writeLines(io.stderr, [`All items: tallygate offers${sameSocket(flags)}`])
  if (isAllowed(code)) return
  writeLines(io.stderr, [`Each check: tallygate explain ${correlationId}${sameSocket(flags)}`])
  io.exitWith(REFUSED)
}

function isAllowed(code: string): boolean {
  return code.startsWith('1')
}

type Item = z.infer<typeof accessAnswer>['requestedItems'][number]

function descriptionOf({ status: { code, description }, totalTokensCharged, lineItems }: Item): string {
  if (!isAllowed(code)) return `refused (${code}): ${description}`
  const parts = lineItems.map((part) => `, ${part.tokensCharged} from ${part.activationId}`)
  const total = totalTokensCharged === '1' ? '1 token' : `${totalTokensCharged} tokens`
  return `allowed: ${total}${parts.join('')}`
}
