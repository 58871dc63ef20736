/** Exit code 0 if the request is allowed, 1 if it is refused. */
import { Command } from 'commander'
import type { Call } from '../../client/call.ts'
import {
  agentClient,
  localInstance,
  patient,
  type SocketFlags,
  withInstanceOption,
  withSocketFlag,
} from '../local-agent.ts'
import { showAccessAnswer } from '../access-answer.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { itemRequestBody, type ItemRequestFlags, withItemRequest } from '../item-request.ts'

interface AccessFlags extends SocketFlags, ItemRequestFlags {
  readonly instance?: string
  readonly item: string
}

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
      showAccessAnswer(call, await client.call(await patient(client, call)), flags, io)
    })
  return examples(access, [
    'tallygate access --item LaserCut --item-version 1.0 --count 2.5 --requester user:anna',
    'tallygate access --item LaserCut --requester user:anna --attribute department=sales --json',
    'tallygate access --instance Workshop --item LaserCut --item-version 1.0 --requester user:anna',
  ])
}
