import { Command } from 'commander'
import { accountInWords, counted } from '../../core/accounts/in-words.ts'
import type { Call } from '../../client/call.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import { type RecoveryState, recoveryState } from '../../protocol/edge/administration.ts'
import { type AdministratorFlags, administrator, withAdministratorFlags } from '../administrator.ts'
import { shellWord } from '../../protocol/shell-quoted.ts'
import { columns, jsonLine, writeLines } from '../lines.ts'
import { examples } from '../examples.ts'
import { namesFor } from '../nouns/command.ts'
import type { Names } from '../nouns/noun.ts'
import type { Io } from '../io.ts'

type LinesOf = (state: RecoveryState, names: Names, instance: string) => readonly string[]

export function command(io: Io): Command {
  const recovery = new Command('recovery').description(
    'Shows and ends the recovery of a cloud whose database was restored from a backup.',
  )
  const add = (name: string, description: string, call: Pick<Call, 'method' | 'path'>, linesOf: LinesOf): Command =>
    withAdministratorFlags(recovery.command(name))
      .description(description)
      .argument('<instance>', 'name or id of the instance')
      .option('--json', 'print one JSON document')
      .action(async (named: string, flags: AdministratorFlags) => {
        using service = await administrator(flags, io)
        const path = `/edge/api/v1/instances/${await service.instanceId(named)}/recovery${call.path}`
        const state = await service.json({ method: call.method, path }, recoveryState)
        if (flags.json === true) {
          writeLines(io.stdout, [jsonLine(state)])
          return
        }
        const names = await namesFor(new Set(state.waitingFor.length === 0 ? [] : (['devices'] as const)), service)
        writeLines(io.stdout, linesOf(state, names, named))
      })
  add(
    'show',
    'Shows which devices the recovery of an instance waits for, and which tokens are withheld and sold in the meantime.',
    { method: 'GET', path: '' },
    (state, names, instance) => [...describe(state, names), ...advice(state, instance), ...accounts(state, 'WITHHELD')],
  )
  add(
    'end',
    'Ends the recovery of an instance and sells the withheld tokens. They may have been sold before the restore.',
    { method: 'POST', path: '/end' },
    (state) => [endedText(state), ...accounts(state, 'AT RISK')],
  )
  return examples(recovery, ['tallygate recovery show Workshop', 'tallygate recovery end Workshop'])
}

function endedText({ since, accounts: withheld }: RecoveryState): string {
  if (since === null && withheld.length === 0) return 'No recovery was in progress.'
  return withheld.length === 0
    ? 'The recovery has ended. No tokens were withheld.'
    : 'The recovery has ended. These tokens may be sold a second time:'
}

const SOLD = {
  MARK: 'nothing until you end the recovery: there is no proof of what was sold before the restore',
  NODE: 'nothing until every node of the cloud has started and shown its sales mark',
} as const

function describe({ since, unproven, waitingFor, accounts: withheld }: RecoveryState, names: Names): readonly string[] {
  if (since === null) {
    return [
      withheld.length === 0
        ? 'No recovery.'
        : 'The recovery has ended. No device has accounted for the withheld tokens.',
    ]
  }
  const isEnding = waitingFor.length === 0 && unproven === null
  const devices = waitingFor.map(({ deviceId, epoch, status }) => [
    '',
    names.has(deviceId) ? `${names.get(deviceId)} (${deviceId})` : deviceId,
    epoch === null ? 'never attached' : `epoch ${epoch}, ${status?.toLowerCase() ?? ''}`,
  ])
  return [
    ...columns([
      ['recovery', `since ${new Date(since).toISOString()}`],
      ['sold', unproven === null ? 'only tokens that are certain to be unsold' : SOLD[unproven]],
      [
        'waiting for',
        devices.length > 0
          ? counted(new Set(waitingFor.map(({ deviceId }) => deviceId)).size, 'device', 'devices')
          : `no device${isEnding ? ': the recovery ends within a minute' : ''}`,
      ],
    ]),
    ...columns(devices),
  ]
}

/** For what may never report. */
function advice({ waitingFor }: RecoveryState, instance: string): readonly string[] {
  const isFenced = waitingFor.some(({ status }) => status === 'FENCED')
  const isNew = waitingFor.some(({ epoch }) => epoch === null)
  return [
    ...(isFenced
      ? [
          'A fenced epoch may never report: its device was restored or copied, and continues with another epoch. The cloud',
          `settles it after edge.settle_after. To end the recovery earlier: tallygate recovery end ${shellWord(instance)}`,
        ]
      : []),
    ...(isNew ? ['If a device that has never attached no longer exists: tallygate devices terminate DEVICE'] : []),
  ]
}

function accounts({ accounts: withheld }: RecoveryState, head: string): readonly string[] {
  if (withheld.length === 0) return []
  return [
    '',
    ...columns([
      [head, 'FREE', 'ACCOUNT'],
      ...withheld.map(({ account, atRisk, free }) => [formatMicro(atRisk), formatMicro(free), accountInWords(account)]),
    ]),
  ]
}
