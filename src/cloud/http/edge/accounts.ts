/** Administration of the accounts of an instance: offline policies, reserves, balances and recovery. */
import { actingFor } from '../../storage/audit.ts'
import { z } from 'zod'
import {
  accountLedger as accountLedgerForm,
  cloudReserveRequest,
  cloudReserveState,
  offlinePolicyRequest,
  offlinePolicyState,
  recoveryState,
} from '../../../protocol/edge/administration.ts'
import { accountLedger } from '../../accounts/account-ledger.ts'
import { type CloudReserves, setCloudReserve, showCloudReserve } from '../../policy/cloud-reserve.ts'
import { setOfflinePolicy, showOfflinePolicy } from '../../policy/offline-policy.ts'
import { overrideRecovery, showRecovery } from '../../sync/recovery/recovery.ts'
import { DEVICES_PAGE, DEVICES_PAGE_MAX } from '../../devices/limits.ts'
import type { Store } from '../../storage/store.ts'
import { type Operation, ADMINISTRATORS, edgeOperation, inInstance } from '../operation.ts'
import { wholeNumber } from './devices.ts'

export type AdministerAccounts = CloudReserves & { readonly store: Store }

const accountsQuery = z.strictObject({
  next: wholeNumber(Number.MAX_SAFE_INTEGER).optional(),
  size: wholeNumber(DEVICES_PAGE_MAX).optional(),
})

const inLineItem = inInstance.extend({ lineItemId: z.string().min(1).max(256) })

const instance = {
  principals: ADMINISTRATORS,
  params: inInstance,
  tag: 'Administration',
  errors: ['NOT_FOUND'],
} as const
const lineItem = { ...instance, params: inLineItem } as const
const policy = { ...lineItem, path: '/instances/:instanceId/line-items/:lineItemId/offline-policy' } as const
const reserve = { ...lineItem, path: '/instances/:instanceId/line-items/:lineItemId/cloud-reserve' } as const

export function accountOperations(deps: AdministerAccounts): readonly Operation[] {
  return [...offlinePolicyOperations(deps), ...cloudReserveOperations(deps), ...instanceOperations(deps)]
}

function offlinePolicyOperations(deps: AdministerAccounts): readonly Operation[] {
  return [
    edgeOperation({
      ...policy,
      method: 'GET',
      id: 'showOfflinePolicy',
      summary: 'Show the offline policy of a line item',
      answers: { 200: { description: 'The policy, with the exposure of all devices.', body: offlinePolicyState } },
      handle: async ({ params }) => {
        return { status: 200, body: await showOfflinePolicy(deps, params.instanceId, params.lineItemId) }
      },
    }),
    edgeOperation({
      ...policy,
      method: 'PUT',
      body: offlinePolicyRequest,
      id: 'setOfflinePolicy',
      role: 'rules',
      summary: 'Set the offline policy of a line item',
      description:
        'The policy applies when a grant is used up and the device cannot reach the cloud. Overspend is billed; it can exceed the pool by up to the exposure.',
      example: { policy: 'essential', overspendCap: '50000000' },
      answers: { 200: { description: 'The policy, with the exposure of all devices.', body: offlinePolicyState } },
      handle: async ({ params, body, principal }) => {
        const acting = actingFor(deps, principal)
        const cap = body.policy === 'essential' ? body.overspendCap : 0n
        return { status: 200, body: await setOfflinePolicy(acting, params.instanceId, params.lineItemId, cap) }
      },
    }),
  ]
}

function cloudReserveOperations(deps: AdministerAccounts): readonly Operation[] {
  return [
    edgeOperation({
      ...reserve,
      method: 'GET',
      id: 'showCloudReserve',
      summary: 'Show how many tokens of a line item are reserved for the cloud',
      answers: { 200: { description: 'The reserve.', body: cloudReserveState } },
      handle: async ({ params }) => {
        return { status: 200, body: await showCloudReserve(deps, params.instanceId, params.lineItemId) }
      },
    }),
    edgeOperation({
      ...reserve,
      method: 'PUT',
      body: cloudReserveRequest,
      id: 'setCloudReserve',
      role: 'rules',
      summary: 'Set how many tokens of a line item are reserved for the cloud',
      description:
        'Devices never receive these tokens, in each period; tokens already on devices are recalled. Charges of the cloud count towards the reserve.',
      example: { tokens: '50000000' },
      answers: { 200: { description: 'The reserve.', body: cloudReserveState } },
      handle: async ({ params, body, principal }) => {
        const command = { ...params, tokens: body.tokens }
        return { status: 200, body: await setCloudReserve(actingFor(deps, principal), command) }
      },
    }),
  ]
}

function instanceOperations(deps: AdministerAccounts): readonly Operation[] {
  return [
    edgeOperation({
      ...instance,
      method: 'GET',
      path: '/instances/:instanceId/accounts',
      id: 'showAccounts',
      query: accountsQuery,
      summary: 'Show the accounts of an instance with the balances of each device',
      description: 'By line item. A page may have fewer accounts than `size`, if they have very many balances.',
      answers: { 200: { description: 'One page.', body: accountLedgerForm } },
      handle: async ({ params, query: { next = 0, size = DEVICES_PAGE } }) => {
        return { status: 200, body: await accountLedger(deps, params.instanceId, next, Math.max(1, size)) }
      },
    }),
    edgeOperation({
      ...instance,
      method: 'GET',
      path: '/instances/:instanceId/recovery',
      id: 'showRecovery',
      summary: 'Show the recovery after a restore from a backup',
      answers: { 200: { description: 'Devices that it waits for, and withheld tokens.', body: recoveryState } },
      handle: async ({ params }) => ({ status: 200, body: await showRecovery(deps, params.instanceId) }),
    }),
    edgeOperation({
      ...instance,
      method: 'POST',
      path: '/instances/:instanceId/recovery/end',
      id: 'endRecovery',
      role: 'operator',
      summary: 'End the recovery: sell withheld tokens, at the risk of selling them twice',
      answers: {
        200: { description: 'The state before the end, with the amounts that may be sold twice.', body: recoveryState },
      },
      handle: async ({ params, principal }) => {
        return { status: 200, body: await overrideRecovery(actingFor(deps, principal), params.instanceId) }
      },
    }),
  ]
}
