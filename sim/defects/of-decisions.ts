/** Defects that decide by other rules or inputs than those of the request, or record another decision. */
import type { AccessCall } from '../../src/agent/access/access.ts'
import { keptSession, storedSession } from '../../src/agent/sessions/kept-session.ts'
import type { StoredSession } from '../../src/agent/ledger/journal.ts'
import type { AssembledAgent } from '../../src/agent/assemble.ts'
import type { Pool, UsageRecord } from '../../src/cloud/storage/records.ts'
import type { Session } from '../../src/core/sessions/session.ts'
import type { Transaction } from '../../src/cloud/storage/store.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { Defect } from './defects.ts'

interface Body {
  readonly requester: object
}

/** Decides by the properties that the requester before had. */
function mixUpDictionaries({ access }: AssembledAgent): void {
  const request = access.request.bind(access)
  let before: object | null = null
  access.request = (call: AccessCall) => {
    const { requester } = call.body as Body
    const body = { ...(call.body as Body), requester: { ...requester, ...before } }
    before = 'dictionary' in requester ? { dictionary: requester.dictionary } : null
    return request({ ...call, body })
  }
}

function failNowAndThen({ access }: AssembledAgent): void {
  const request = access.request.bind(access)
  let requests = 0
  access.request = (call: AccessCall) => {
    requests += 1
    return requests % 3 === 0 ? Promise.reject(new CodedError('OVERLOADED', 'too many requests wait')) : request(call)
  }
}

function billingOneItem(tx: Transaction): Transaction {
  const append = async (records: readonly UsageRecord[]): Promise<void> => {
    const firsts = new Map<string, string | null>()
    for (const { correlationId, metaData } of records.toReversed()) firsts.set(correlationId, metaData)
    await tx.usage.append(records.filter(({ correlationId, metaData }) => firsts.get(correlationId) === metaData))
  }
  return { ...tx, usage: { ...tx.usage, append } }
}

function keepingAllocations(tx: Transaction): Transaction {
  const known = new Map<string, Pool>()
  return {
    ...tx,
    accounts: {
      ...tx.accounts,
      lock: async (accounts) => {
        const pools = await tx.accounts.lock(accounts)
        for (const [account, pool] of pools) known.set(account, pool)
        return pools
      },
      save: (pools) => {
        const chargedOf = ({ account, charged }: Pool): bigint => {
          const before = account.startsWith('action/') ? (known.get(account)?.charged ?? 0n) : 0n
          return before > charged ? before : charged
        }
        return tx.accounts.save(pools.map((pool) => ({ ...pool, charged: chargedOf(pool) })))
      },
    },
  }
}

function forgetCharge<S extends Session | undefined>(session: S): S {
  if (session === undefined || session.charge === null) return session
  const items = session.charge.items.map((each) => ({ ...each, shares: [] }))
  return { ...session, charge: { ...session.charge, items } }
}

function withoutCost(stored: StoredSession): StoredSession {
  const kept = keptSession(stored)
  return storedSession({ ...kept, session: forgetCharge(kept.session) })
}

/** Sessions whose charges have no cost. */
function forgettingCharges(tx: Transaction): Transaction {
  const { sessions } = tx
  return {
    ...tx,
    sessions: {
      ...sessions,
      lock: async (id) => forgetCharge(await sessions.lock(id)),
      lockDue: async (now) => forgetCharge(await sessions.lockDue(now)),
    },
  }
}

export const DECISION_DEFECTS: readonly Defect[] = [
  {
    name: 'mixes-up-dictionaries',
    is: 'a device decides on a requester by the properties of the requester before',
    always: ['actions'],
    device: () => ({ agent: mixUpDictionaries }),
  },
  {
    name: 'fails-now-and-then',
    is: 'a device answers every third request with an error',
    device: () => ({ agent: failNowAndThen }),
  },
  {
    name: 'bills-one-item',
    is: 'the twin bills the first item of a request only',
    always: ['cloud-request'],
    twin: () => ({ transaction: billingOneItem }),
  },
  {
    name: 'allocation-stays-charged',
    is: 'a refund of the twin returns nothing to the allocation that was charged',
    always: ['cloud-session', 'session-life', 'actions'],
    twin: () => ({ transaction: keepingAllocations }),
  },
  {
    name: 'sessions-forget-their-charge',
    is: 'a session of the twin that ends gets nothing back',
    always: ['session-life'],
    twin: () => ({ transaction: forgettingCharges }),
  },
  {
    name: 'device-forgets-what-sessions-paid',
    is: 'a session of a device that ends after a restart of the agent gets nothing back',
    always: ['device-session', 'kill'],
    device: () => ({
      journal: (journal) => ({
        ...journal,
        read: async () => {
          const snapshot = await journal.read()
          return { ...snapshot, sessions: snapshot.sessions.map(withoutCost) }
        },
      }),
    }),
  },
  {
    name: 'charges-without-heartbeat',
    is: 'the twin charges a session again and again without a heartbeat',
    always: ['session-life'],
    twin: () => ({
      transaction: (tx) => {
        const save: Transaction['sessions']['save'] = (session) => tx.sessions.save({ ...session, heartbeatDue: null })
        return { ...tx, sessions: { ...tx.sessions, save } }
      },
    }),
  },
  {
    name: 'actions-in-another-order',
    is: 'the actions of a line item are published in another order than that of the administrator',
    always: ['actions'],
    twin: () => ({
      transaction: (tx) => {
        const list: Transaction['actions']['list'] = async (...page) => {
          const all = await tx.actions.list(...page)
          return all.map((each) => ({ ...each, actions: each.actions.toReversed() }))
        }
        return { ...tx, actions: { ...tx.actions, list } }
      },
    }),
  },
]
