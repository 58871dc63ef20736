/** `tallygate rotate-key`: a technician has the device replace its key, while it goes on deciding. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Command, Option } from 'commander'
import { KEY } from '../../agent/app/link/rotate-key.ts'
import type { HttpClient } from '../../client/http.ts'
import { CodedError, type ErrorCode, ERRORS } from '../../protocol/errors.ts'
import { AGENT_ROTATE_KEY_PATH, keyRotation } from '../../protocol/local/rotate-key.ts'
import { AGENT_STATUS_PATH, agentStatus } from '../../protocol/local/status.ts'
import { agentClient, type SocketFlags, withSocketFlag } from '../agent-socket.ts'
import { durationArgument } from '../arguments.ts'
import type { Io } from '../io.ts'
import { jsonLine } from '../json-line.ts'

interface RotateKeyFlags extends SocketFlags {
  /** ms; false: not at all. */
  readonly wait: number | false
  readonly json?: true
}

/** Between two looks at the agent, ms. */
const LOOK_EVERY_MS = 200

export function command(io: Io): Command {
  return withSocketFlag(new Command('rotate-key'))
    .description(
      'Has this device replace its key by another one that it makes itself. Requests are decided meanwhile. Without a ' +
        'connection the order stands until there is one.',
    )
    .addOption(
      new Option('--wait <time>', 'how long to wait until it is done; the order stands all the same')
        .argParser(durationArgument)
        .default(10_000, '10s'),
    )
    .option('--no-wait', 'do not wait')
    .option('--json', 'for programs: one JSON document')
    .action(async (flags: RotateKeyFlags) => {
      using client = agentClient(flags, io)
      const { key, next } = await client.json({ method: 'POST', path: AGENT_ROTATE_KEY_PATH }, keyRotation)
      const done = await isDone(client, next, io.now() + (flags.wait === false ? 0 : flags.wait), io)
      io.stdout.write(`${flags.json === true ? jsonLine({ key, next, done }) : described(key, next, done)}\n`)
    })
}

function described(key: string, next: string, done: boolean): string {
  if (done) return `The key of this device is ${next}, in the place of ${key}.`
  return `The key ${next} takes the place of ${key} as soon as the cloud is reached: see tallygate status.`
}

/** Looks until then. @throws CodedError why the cloud, or the directory, does not take the key */
async function isDone(client: HttpClient, next: string, until: number, io: Io): Promise<boolean> {
  for (;;) {
    const { key, conditions } = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
    if (key.id === next) return true
    const condition = conditions.find(({ subject }) => subject === KEY)
    if (condition !== undefined && Object.hasOwn(ERRORS, condition.code)) {
      throw new CodedError(condition.code as ErrorCode, condition.message)
    }
    if (io.now() >= until) return false
    await sleep(LOOK_EVERY_MS)
  }
}
