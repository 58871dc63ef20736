import { setTimeout as sleep } from 'node:timers/promises'
import { Command, Option } from 'commander'
import { KEY } from '../../agent/sync/rotate-key.ts'
import type { HttpClient } from '../../client/http.ts'
import { CodedError, isErrorCode } from '../../protocol/errors.ts'
import { AGENT_ROTATE_KEY_PATH, keyRotation } from '../../protocol/local/rotate-key.ts'
import { AGENT_STATUS_PATH, agentStatus } from '../../protocol/local/status.ts'
import { agentClient, patient, sameSocket, type SocketFlags, withSocketFlag } from '../local-agent.ts'
import { durationBetween } from '../arguments.ts'
import type { Io } from '../io.ts'
import { jsonLine } from '../lines.ts'

interface RotateKeyFlags extends SocketFlags {
  /** ms; false: do not wait. */
  readonly wait: number | false
}

const LOOK_EVERY_MS = 200

export function command(io: Io): Command {
  return withSocketFlag(new Command('rotate-key'))
    .description(
      'Replaces the key of this device with a new key that the device generates. The agent keeps deciding requests. Without a connection, the key changes once the device is online.',
    )
    .addOption(
      new Option('--wait <time>', 'how long to wait for the change; it continues in the background afterwards')
        .argParser(durationBetween('1ms', '24h'))
        .default(10_000, '10s'),
    )
    .option('--no-wait', 'do not wait')
    .option('--json', 'print one JSON document')
    .action(async (flags: RotateKeyFlags) => {
      using client = agentClient(flags, io)
      const call = { method: 'POST', path: AGENT_ROTATE_KEY_PATH } as const
      const { key, next } = await client.json(await patient(client, call), keyRotation)
      const done = await isDone(client, next, io.now() + (flags.wait === false ? 0 : flags.wait), io)
      io.stdout.write(`${flags.json === true ? jsonLine({ key, next, done }) : described(key, next, done, flags)}\n`)
    })
}

function described(key: string, next: string, done: boolean, flags: SocketFlags): string {
  if (done) return `The key of this device is now ${next}. It replaced ${key}.`
  return `The key ${next} replaces ${key} once the cloud is reached. Run tallygate status --all${sameSocket(flags)} to check.`
}

async function isDone(client: HttpClient, next: string, until: number, io: Io): Promise<boolean> {
  for (;;) {
    const { key, conditions } = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
    if (key.id === next) return true
    const condition = conditions.find(({ subject }) => subject === KEY)
    if (condition !== undefined && isErrorCode(condition.code)) {
      throw new CodedError(condition.code, condition.message)
    }
    if (io.now() >= until) return false
    await sleep(LOOK_EVERY_MS)
  }
}
