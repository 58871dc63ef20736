/** Administration of devices and their sessions. The audit records every command with its key. */
import { z } from 'zod'
import {
  auditList,
  auditedAction,
  deviceEvidence,
  deviceList,
  deviceState,
  type SessionCommandResultWire,
  sessionCommandResult,
  type DeviceSessionCommandResultWire,
  deviceSessionCommandResult,
} from '../../../protocol/edge/administration.ts'
import { labelChange, labelsQuery } from '../../../protocol/edge/labels.ts'
import type { ErrorCode } from '../../../protocol/errors.ts'
import { plainText, queryBoolean, queryInstant, uuidInLowerCase } from '../../../protocol/wire.ts'
import {
  type DeviceCommandDeps,
  type DeviceCommandName,
  actingOn,
  commandDevice,
} from '../../devices/command-device.ts'
import { type ViewDevices, listDevices, showAudit, showDevice, showEvidence } from '../../devices/devices.ts'
import { labelDevice } from '../../devices/label-device.ts'
import { DEVICES_PAGE, DEVICES_PAGE_MAX } from '../../devices/limits.ts'
import { commandDeviceSession } from '../../sessions/command-device-session.ts'
import { commandSession } from '../../sessions/command-session.ts'
import type { GiveWay } from '../../runtime/give-way.ts'
import { pagesOf } from '../merge-cells.ts'
import { type Operation, ADMINISTRATORS, edgeOperation, inDevice, inSession, instanceId } from '../operation.ts'

export type AdministerDevices = ViewDevices & DeviceCommandDeps & { readonly giveWay: GiveWay }

const inDeviceSession = z.object({ ...inDevice.shape, ...inSession.shape })

export const wholeNumber = (max: number) =>
  z
    .string()
    .regex(/^\d{1,15}$/, 'must be a whole number')
    .meta({ wire: { type: 'integer', minimum: 0, maximum: max } })
    .transform(Number)
    .pipe(z.int().max(max))

const devicesQuery = z.strictObject({
  instanceId: instanceId.optional(),
  labels: labelsQuery.optional(),
  next: wholeNumber(Number.MAX_SAFE_INTEGER).optional(),
  size: wholeNumber(DEVICES_PAGE_MAX).optional(),
})

const auditQuery = z.strictObject({
  deviceId: uuidInLowerCase.optional(),
  instanceId: instanceId.optional(),
  by: plainText(256).min(1).optional(),
  action: auditedAction.optional(),
  since: queryInstant.optional(),
  until: queryInstant.optional(),
  sessions: queryBoolean.optional(),
  before: wholeNumber(Number.MAX_SAFE_INTEGER).optional(),
  size: wholeNumber(DEVICES_PAGE_MAX).optional(),
})

const DEVICE_SUMMARY = {
  LOCK: 'Lock a device: it grants no requests until it is unlocked',
  UNLOCK: 'Unlock a device',
  TERMINATE: 'End the service of a device until it enrolls again',
} as const

const SESSION_SUMMARY = {
  LOCK: 'Lock a session: it accepts no requests until it is unlocked',
  UNLOCK: 'Unlock a session',
  TERMINATE: 'End a session',
} as const

const COMMANDS = ['LOCK', 'UNLOCK', 'TERMINATE'] as const

const command = { method: 'POST', principals: ADMINISTRATORS, role: 'operator', tag: 'Administration' } as const
const look = { method: 'GET', principals: ADMINISTRATORS, tag: 'Administration' } as const

export function deviceOperations(deps: AdministerDevices): readonly Operation[] {
  return [...showOperations(deps), labelOperation(deps), ...commandOperations(deps), ...sessionCommandOperations(deps)]
}

function showOperations(deps: AdministerDevices): readonly Operation[] {
  return [
    edgeOperation({
      ...look,
      path: '/devices',
      query: devicesQuery,
      cells: pagesOf('devices'),
      id: 'listDevices',
      summary: 'List devices in order of enrollment',
      description: '`labels` selects devices that have all of these labels, for example `site=berlin,line=3`.',
      answers: { 200: { description: 'One page.', body: deviceList } },
      errors: ['NOT_FOUND'],
      handle: async ({ query, principal }) => {
        const { instanceId, labels, next = 0, size = DEVICES_PAGE } = query
        const filter = { instanceId, labels, scope: principal.scope }
        return { status: 200, body: await listDevices(deps, filter, next, Math.max(1, size)) }
      },
    }),
    edgeOperation({
      ...look,
      path: '/devices/:deviceId',
      params: inDevice,
      id: 'showDevice',
      summary: 'Show a device',
      answers: { 200: { description: 'The device.', body: deviceState } },
      errors: ['NOT_FOUND'],
      handle: async ({ params }) => ({ status: 200, body: await showDevice(deps, params.deviceId) }),
    }),
    edgeOperation({
      ...look,
      path: '/devices/:deviceId/evidence',
      params: inDevice,
      id: 'showEvidence',
      summary: 'List segments of a device that were not merged, newest first',
      answers: { 200: { description: 'Up to 20 segments.', body: deviceEvidence } },
      errors: ['NOT_FOUND'],
      handle: async ({ params }) => ({ status: 200, body: await showEvidence(deps, params.deviceId) }),
    }),
    edgeOperation({
      ...look,
      path: '/audit',
      query: auditQuery,
      id: 'listAudit',
      summary: 'List changes with their authors, newest first',
      description:
        'Changes of rules, line items, rate tables, keys, configuration, devices and sessions. `instanceId` selects rows about objects of one instance, its devices and their enrollment tokens; `deviceId` rows about one device; `by` those of a key id, or of the name of a key or device. `since` is inclusive, `until` exclusive. Sessions that clients and devices open and close are listed only with `sessions=true`, or with one of these actions.',
      answers: { 200: { description: 'One page.', body: auditList } },
      handle: async ({ query }) => {
        const { before, sessions, size = DEVICES_PAGE, ...selected } = query
        const isOfSessions = query.action === 'OPEN_SESSION' || query.action === 'CLOSE_SESSION'
        const traffic = sessions ?? isOfSessions
        const filter = { ...selected, traffic, before: before === undefined ? undefined : BigInt(before) }
        return { status: 200, body: await showAudit(deps, filter, Math.max(1, size)) }
      },
    }),
  ]
}

interface DeviceCommand {
  readonly name: DeviceCommandName
  readonly id: string
  readonly summary: string
  readonly description?: string
  /** Description of the response. */
  readonly shown: string
  readonly errors: readonly ErrorCode[]
}

const DEVICE_COMMANDS: readonly DeviceCommand[] = [
  ...COMMANDS.map((kind) => ({
    name: kind.toLowerCase() as Lowercase<typeof kind>,
    id: `${kind.toLowerCase()}Device`,
    summary: DEVICE_SUMMARY[kind],
    description:
      'Also applies to all sessions that the device has opened. A change notification makes the device sync; the cloud still accepts its backlog.',
    shown: 'The device, with its state in the cloud.',
    errors: ['NOT_FOUND', 'CONFLICT'] as const,
  })),
  {
    name: 'revoke',
    id: 'revokeDevice',
    summary: "Revoke a device's key permanently",
    shown: 'The device, revoked.',
    errors: ['NOT_FOUND'],
  },
  {
    name: 'rotate-key',
    id: 'rotateDeviceKey',
    summary: 'Ask a device to replace its key',
    shown: 'The device; the request is pending.',
    errors: ['NOT_FOUND', 'CONFLICT'],
  },
  {
    name: 'release',
    id: 'releaseDevice',
    summary: 'Ask a device to return its unused tokens',
    shown: 'The device; the request is pending.',
    errors: ['NOT_FOUND', 'CONFLICT'],
  },
]

function commandOperations(deps: AdministerDevices): readonly Operation[] {
  return DEVICE_COMMANDS.map(({ name, shown, ...described }) =>
    edgeOperation({
      ...command,
      ...described,
      path: `/devices/:deviceId/${name}`,
      params: inDevice,
      answers: { 200: { description: shown, body: deviceState } },
      handle: async ({ params: { deviceId }, principal }) => {
        await commandDevice(actingOn(deps, principal), name, deviceId)
        return { status: 200, body: await showDevice(deps, deviceId) }
      },
    }),
  )
}

function labelOperation(deps: AdministerDevices): Operation {
  return edgeOperation({
    ...command,
    path: '/devices/:deviceId/labels',
    params: inDevice,
    body: labelChange,
    id: 'labelDevice',
    summary: 'Change the labels of a device',
    example: { set: { site: 'berlin', line: '3' }, remove: ['rollout'] },
    answers: { 200: { description: 'The device, with its labels.', body: deviceState } },
    errors: ['NOT_FOUND', 'LABEL_INVALID'],
    handle: async ({ params: { deviceId }, body, principal }) => {
      await labelDevice(actingOn(deps, principal), deviceId, body)
      return { status: 200, body: await showDevice(deps, deviceId) }
    },
  })
}

function sessionCommandOperations(deps: AdministerDevices): readonly Operation[] {
  return [
    ...COMMANDS.map((kind) =>
      edgeOperation({
        ...command,
        path: `/sessions/:sessionId/${kind.toLowerCase()}`,
        params: inSession,
        id: `${kind.toLowerCase()}Session`,
        summary: SESSION_SUMMARY[kind],
        answers: {
          200: { description: 'The command was applied.', body: sessionCommandResult },
          202: {
            description: 'The device that keeps the session is notified with its next sync.',
            body: sessionCommandResult,
          },
        },
        errors: ['NOT_FOUND', 'CONFLICT'],
        handle: async ({ params, principal }) => {
          const request = { id: params.sessionId, command: kind }
          const { outcome, session } = await commandSession(actingOn(deps, principal).sessions, request, deps.now())
          const body: SessionCommandResultWire = { sessionId: session.id, state: session.state, outcome }
          return { status: outcome === 'DONE' ? 200 : 202, body }
        },
      }),
    ),
    ...COMMANDS.map((kind) =>
      edgeOperation({
        ...command,
        path: `/devices/:deviceId/sessions/:sessionId/${kind.toLowerCase()}`,
        params: inDeviceSession,
        id: `${kind.toLowerCase()}SessionOfDevice`,
        summary: `${SESSION_SUMMARY[kind]} (session of a device, known or not)`,
        description:
          'If the device has not reported the session yet, the command is stored, and deleted after 30 days without such a session.',
        answers: {
          200: { description: 'The command was applied.', body: deviceSessionCommandResult },
          202: { description: 'The device is notified with its next sync.', body: deviceSessionCommandResult },
        },
        errors: ['NOT_FOUND', 'CONFLICT'],
        handle: async ({ params: { deviceId, sessionId }, principal }) => {
          const request = { deviceId, id: sessionId, command: kind }
          const result = await commandDeviceSession(actingOn(deps, principal).sessions, request, deps.now())
          const state = result.outcome === 'NOTED' ? null : result.session.state
          const body: DeviceSessionCommandResultWire = { sessionId, state, outcome: result.outcome }
          return { status: result.outcome === 'DONE' ? 200 : 202, body }
        },
      }),
    ),
  ]
}
