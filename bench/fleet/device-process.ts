/** A process with some of the devices. It prepares requests before they are measured, so that signing limits nothing. */
import { randomUUID } from 'node:crypto'
import { ENGINE } from '../../src/core/engine.ts'
import { engineQuery } from '../../src/protocol/edge/engines.ts'
import { enrollmentResponse } from '../../src/protocol/edge/enrollment.ts'
import { idempotencyHeader } from '../../src/protocol/wire.ts'
import { ENTRIES, FleetDevice } from './device.ts'
import { type Call, type Load, type Plan, run } from './load.ts'

export interface Enrollment {
  readonly token: string
  /** The instance of this device and some others. */
  readonly instanceId: string
}

/** Without a plan: work that is not measured. */
export type Command =
  | { readonly kind: 'make'; readonly count: number }
  | { readonly kind: 'seal'; readonly isShared: boolean; readonly hasEntries: boolean; readonly wanted: string }
  | {
      readonly kind: 'enroll'
      readonly enrollments: readonly Enrollment[]
      /** The instance of all devices. */
      readonly sharedId: string
      readonly addresses: readonly string[]
      readonly plan: Plan
    }
  | { readonly kind: 'attach' | 'open-sessions' | 'sync' | 'policy'; readonly plan: Plan }

export interface Reply {
  readonly load: Load | null
  /** Of this process, s. */
  readonly processorSeconds: number
  /** Sums over its devices by account, micro-tokens. */
  readonly balances: Readonly<Record<string, { readonly granted: string; readonly used: string }>>
  readonly refused: number
  readonly error: string | null
}

let devices: FleetDevice[] = []
let bodies: Buffer[] = []
let addresses: readonly string[] = []
let enrollments: readonly Enrollment[] = []
let sharedId = ''

const addressOf = (index: number): string => addresses[index % addresses.length] ?? ''
const edge = (index: number): string => `${addressOf(index)}/edge/api/v1`
const indexes = (): number[] => devices.map((_device, index) => index)
const deviceAt = (index: number): FleetDevice => {
  const device = devices[index]
  if (device === undefined) throw new RangeError(`there is no device ${index}`)
  return device
}
const ownId = (index: number): string => enrollments[index]?.instanceId ?? ''
const post = (index: number, operation: string, body: Buffer, isCompressed: boolean): Call => {
  const { id, token } = deviceAt(index)
  return { url: `${edge(index)}/devices/${id}/${operation}`, method: 'POST', token, body, isCompressed }
}

async function perform(command: Command): Promise<Load | null> {
  switch (command.kind) {
    case 'make':
      devices = []
      for (let made = 0; made < command.count; made += 1) devices.push(await FleetDevice.make())
      return null
    case 'seal':
      bodies = []
      for (const [index, device] of devices.entries()) {
        const instanceId = command.isShared ? sharedId : ownId(index)
        bodies.push(await device.seal(instanceId, command.hasEntries ? ENTRIES : 0, BigInt(command.wanted)))
      }
      return null
    case 'enroll': {
      const { plan } = command
      ;({ addresses, enrollments, sharedId } = command)
      return run(
        indexes(),
        plan,
        (index) => ({
          url: `${edge(index)}/enrollments`,
          method: 'POST',
          token: enrollments[index]?.token ?? '',
          body: Buffer.from(JSON.stringify({ publicKey: deviceAt(index).jwk })),
          isCompressed: false,
        }),
        (index, text) =>
          deviceAt(index).enrolled(enrollmentResponse.parse(JSON.parse(text)).deviceId, [ownId(index), sharedId]),
      )
    }
    case 'attach':
      return run(
        indexes(),
        command.plan,
        (index) => post(index, 'attach', deviceAt(index).attachBody(), false),
        (index, text) => deviceAt(index).attached(text),
      )
    case 'open-sessions':
      return run(
        indexes().flatMap((index) => [ownId(index), sharedId].map((instanceId) => ({ index, instanceId }))),
        command.plan,
        ({ index, instanceId }) => ({
          url: `${addressOf(index)}/api/v1.1/sessions`,
          method: 'POST',
          token: deviceAt(index).token,
          headers: { 'x-instance-id': instanceId, [idempotencyHeader]: randomUUID() },
          body: Buffer.from(JSON.stringify({ instanceId })),
          isCompressed: false,
        }),
        () => undefined,
      )
    case 'sync':
      return run(
        indexes(),
        command.plan,
        (index) => post(index, 'sync', bodies[index] ?? Buffer.alloc(0), true),
        (index, text) => deviceAt(index).synced(text),
      )
    case 'policy': {
      const path = `/instances/${sharedId}/policy?${engineQuery(ENGINE)}`
      return run(
        indexes(),
        command.plan,
        (index) => ({
          url: `${edge(index)}${path}`,
          method: 'GET',
          token: deviceAt(index).token,
          body: null,
          isCompressed: false,
        }),
        () => undefined,
      )
    }
  }
}

function sums(): Reply['balances'] {
  const all: Record<string, { granted: string; used: string }> = {}
  for (const { balances } of devices) {
    for (const [account, { granted, used }] of balances) {
      const sum = (all[account] ??= { granted: '0', used: '0' })
      sum.granted = `${BigInt(sum.granted) + granted}`
      sum.used = `${BigInt(sum.used) + used}`
    }
  }
  return all
}

async function answer(command: Command): Promise<Reply> {
  const before = process.cpuUsage()
  let load: Load | null = null
  let error: string | null = null
  try {
    load = await perform(command)
  } catch (cause) {
    error = cause instanceof Error ? cause.message : String(cause)
  }
  const { user, system } = process.cpuUsage(before)
  return {
    load,
    processorSeconds: (user + system) / 1e6,
    balances: sums(),
    refused: devices.reduce((sum, device) => sum + device.refused, 0),
    error,
  }
}

process.on('message', (command: Command) => void answer(command).then((reply) => process.send?.(reply)))
