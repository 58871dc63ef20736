/** Administration of devices. The audit records every command with its key. */
import { z } from 'zod'
import {
  auditList,
  deviceList,
  deviceState,
  type SessionCommandResultWire,
  sessionCommandResult,
  type DeviceSessionCommandResultWire,
  deviceSessionCommandResult,
} from '../../protocol/edge/administration.ts'
import { uuid } from '../../protocol/wire.ts'
import {
  type DeviceCommands,
  type ViewDevices,
  listDevices,
  releaseDevice,
  revokeDevice,
  rotateDeviceKey,
  showAudit,
  showDevice,
} from '../devices/devices.ts'
import { type SuspendDevice, suspendDevice } from '../devices/suspend-device.ts'
import { DEVICES_PAGE, DEVICES_PAGE_MAX, EDGE_BODY_BYTES_MAX } from '../devices/limits.ts'
import { commandDeviceSession } from '../sessions/command-device-session.ts'
import { commandSession } from '../sessions/command-session.ts'
import { type EdgeRoute, edgeRoute, inDevice, keyOf } from './edge-area.ts'
import { instanceId } from './routes.ts'

export type DeviceParts = ViewDevices &
  DeviceCommands &
  SuspendDevice & {
    /** Called after a revocation to close the device's connections. */
    readonly onRevoked: (deviceId: string) => void
  }

const inSession = z.object({ sessionId: uuid.toLowerCase() })
const inDeviceSession = z.object({ deviceId: uuid.toLowerCase(), sessionId: uuid.toLowerCase() })

const wholeNumber = (max: number) =>
  z
    .string()
    .regex(/^\d{1,15}$/, 'must be a whole number')
    .meta({ wire: { type: 'integer', minimum: 0, maximum: max } })
    .transform(Number)
    .pipe(z.int().max(max))

const devicesQuery = z.strictObject({
  instanceId: instanceId.optional(),
  next: wholeNumber(Number.MAX_SAFE_INTEGER).optional(),
  size: wholeNumber(DEVICES_PAGE_MAX).optional(),
})

const auditQuery = z.strictObject({
  deviceId: uuid.toLowerCase().optional(),
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

const ORDERS = ['LOCK', 'UNLOCK', 'TERMINATE'] as const

const order = { method: 'POST', access: 'ADMINISTRATION', bodyMax: EDGE_BODY_BYTES_MAX, tag: 'Administration' } as const
const look = { method: 'GET', access: 'ADMINISTRATION', tag: 'Administration' } as const

export function deviceRoutes(deps: DeviceParts): readonly EdgeRoute[] {
  const shown = async (deviceId: string) => ({ status: 200, body: await showDevice(deps, deviceId) })
  return [
    edgeRoute({
      ...look,
      path: '/devices',
      query: devicesQuery,
      id: 'listDevices',
      summary: 'List devices in order of enrollment',
      answers: { 200: { description: 'One page.', body: deviceList } },
      errors: ['NOT_FOUND'],
      handle: async ({ query }) => {
        const size = Math.max(1, query.size ?? DEVICES_PAGE)
        return { status: 200, body: await listDevices(deps, query.instanceId ?? null, query.next ?? 0, size) }
      },
    }),
    edgeRoute({
      ...look,
      path: '/devices/:deviceId',
      params: inDevice,
      id: 'showDevice',
      summary: 'Show a device',
      answers: { 200: { description: 'The device.', body: deviceState } },
      errors: ['NOT_FOUND'],
      handle: async ({ params }) => shown(params.deviceId),
    }),
    ...ORDERS.map((kind) =>
      edgeRoute({
        ...order,
        path: `/devices/:deviceId/${kind.toLowerCase()}`,
        params: inDevice,
        id: `${kind.toLowerCase()}Device`,
        summary: DEVICE_SUMMARY[kind],
        description:
          'Also applies to all sessions that the device has opened. A change notification makes the device sync; the cloud still accepts its backlog.',
        answers: { 200: { description: 'The device, with its state in the cloud.', body: deviceState } },
        errors: ['NOT_FOUND', 'CONFLICT'],
        handle: async (call) => {
          await suspendDevice(deps, call.params.deviceId, kind, keyOf(call))
          return shown(call.params.deviceId)
        },
      }),
    ),
    edgeRoute({
      ...order,
      path: '/devices/:deviceId/revoke',
      params: inDevice,
      id: 'revokeDevice',
      summary: "Revoke a device's key permanently",
      answers: { 200: { description: 'The device, revoked.', body: deviceState } },
      errors: ['NOT_FOUND'],
      handle: async (call) => {
        const { deviceId } = call.params
        await revokeDevice(deps, deviceId, keyOf(call))
        deps.onRevoked(deviceId)
        return shown(deviceId)
      },
    }),
    edgeRoute({
      ...order,
      path: '/devices/:deviceId/rotate-key',
      params: inDevice,
      id: 'rotateDeviceKey',
      summary: 'Ask a device to replace its key',
      answers: { 200: { description: 'The device; the request is pending.', body: deviceState } },
      errors: ['NOT_FOUND', 'CONFLICT'],
      handle: async (call) => {
        await rotateDeviceKey(deps, call.params.deviceId, keyOf(call))
        return shown(call.params.deviceId)
      },
    }),
    edgeRoute({
      ...order,
      path: '/devices/:deviceId/release',
      params: inDevice,
      id: 'releaseDevice',
      summary: 'Ask a device to return its unused tokens',
      answers: { 200: { description: 'The device; the request is pending.', body: deviceState } },
      errors: ['NOT_FOUND', 'CONFLICT'],
      handle: async (call) => {
        await releaseDevice(deps, call.params.deviceId, keyOf(call))
        return shown(call.params.deviceId)
      },
    }),
    ...ORDERS.map((kind) =>
      edgeRoute({
        ...order,
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
        handle: async (call) => {
          const held = { id: call.params.sessionId, command: kind, by: keyOf(call) }
          const { outcome, session } = await commandSession(deps.sessions, held, deps.now())
          const said: SessionCommandResultWire = { sessionId: session.id, state: session.state, outcome }
          return { status: outcome === 'DONE' ? 200 : 202, body: said }
        },
      }),
    ),
    ...ORDERS.map((kind) =>
      edgeRoute({
        ...order,
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
        handle: async (call) => {
          const { deviceId, sessionId } = call.params
          const asked = { deviceId, id: sessionId, command: kind, by: keyOf(call) }
          const ordered = await commandDeviceSession(deps.sessions, asked, deps.now())
          const state = ordered.outcome === 'NOTED' ? null : ordered.session.state
          const said: DeviceSessionCommandResultWire = { sessionId, state, outcome: ordered.outcome }
          return { status: ordered.outcome === 'DONE' ? 200 : 202, body: said }
        },
      }),
    ),
    edgeRoute({
      ...look,
      path: '/audit',
      query: auditQuery,
      id: 'listAudit',
      summary: 'List administrative commands, newest first',
      answers: { 200: { description: 'One page.', body: auditList } },
      handle: async ({ query }) => {
        const before = query.before === undefined ? null : BigInt(query.before)
        const size = Math.max(1, query.size ?? DEVICES_PAGE)
        return { status: 200, body: await showAudit(deps, query.deviceId ?? null, before, size) }
      },
    }),
  ]
}
