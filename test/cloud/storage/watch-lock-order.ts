// A store that checks the order of locks of `src/cloud/storage/store.ts` in every transaction, whichever database is behind it.
import type { AccountId } from '../../../src/core/accounts/account.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import { withTransactions } from '../../../src/cloud/storage/with-transactions.ts'

const RANKS = ['devices', 'sessions', 'rules', 'accounts'] as const
type Rank = (typeof RANKS)[number]

/** Throws inside the transaction where a lock is taken out of order, or a row is written without the lock that it needs. */
export function watchLockOrder(store: Store): Store {
  return withTransactions(store, (work) => store.transaction((tx) => work(watched(tx))))
}

class Locks {
  readonly #held: Record<Rank, Set<string>> = {
    devices: new Set(),
    sessions: new Set(),
    rules: new Set(),
    accounts: new Set(),
  }
  readonly #changing = new Set<string>()

  /** A lock that the transaction waits for; one that it has already is free. */
  take(rank: Rank, id: string): void {
    const held = this.#held[rank]
    if (held.has(id)) return
    const later = RANKS.slice(RANKS.indexOf(rank) + 1).find((each) => this.#held[each].size > 0)
    if (later !== undefined) throw new Error(`order of locks: ${rank} ${id} after ${later}`)
    const above = [...held].find((each) => each > id)
    // An account before one that is locked is not waited for: the store sees to that.
    if (above !== undefined && rank !== 'accounts') throw new Error(`order of locks: ${rank} ${id} after ${above}`)
    held.add(id)
  }

  change(id: string): void {
    if (this.#held.rules.has(id) && !this.#changing.has(id)) throw new Error(`order of locks: rules ${id} shared first`)
    this.take('rules', id)
    this.#changing.add(id)
  }

  /** The store restarts the transaction if another one could wait for it. */
  upgrade(id: string): void {
    this.require('rules', [id])
    this.#changing.add(id)
  }

  require(rank: Rank, ids: Iterable<string>): void {
    for (const id of ids) if (!this.#held[rank].has(id)) throw new Error(`not locked: ${rank} ${id}`)
  }
}

function watched(tx: Transaction): Transaction {
  const locks = new Locks()
  return {
    ...tx,
    sessions: {
      ...tx.sessions,
      async lock(id) {
        const session = await tx.sessions.lock(id)
        if (session !== undefined) locks.take('sessions', id)
        return session
      },
      async lockSome(ids) {
        const found = await tx.sessions.lockSome(ids)
        for (const id of found) locks.take('sessions', id)
        return found
      },
      async lockStored(ids) {
        const found = await tx.sessions.lockStored(ids)
        for (const id of found.keys()) locks.take('sessions', id)
        return found
      },
      async lockOfDevices(deviceIds) {
        const found = await tx.sessions.lockOfDevices(deviceIds)
        const ids = [...found.values()].flat().map(({ id }) => id)
        for (const id of ids.sort()) locks.take('sessions', id)
        return found
      },
      async saveSome(changes) {
        locks.require(
          'sessions',
          changes.map(({ session }) => session.id),
        )
        await tx.sessions.saveSome(changes)
      },
      async disconnectKept(deviceId, now) {
        for (const id of await tx.sessions.notEnded(deviceId)) locks.take('sessions', id)
        await tx.sessions.disconnectKept(deviceId, now)
      },
      async setWantedOfKept(deviceId, command) {
        for (const id of await tx.sessions.notEnded(deviceId)) locks.take('sessions', id)
        await tx.sessions.setWantedOfKept(deviceId, command)
      },
      async lockDue(now) {
        const session = await tx.sessions.lockDue(now)
        if (session !== undefined) locks.take('sessions', session.id)
        return session
      },
    },
    policyRevisions: {
      ...tx.policyRevisions,
      async lockShared(instanceId) {
        locks.take('rules', instanceId)
        return tx.policyRevisions.lockShared(instanceId)
      },
      async lockSomeShared(instanceIds, ...following) {
        for (const instanceId of instanceIds) locks.take('rules', instanceId)
        return tx.policyRevisions.lockSomeShared(instanceIds, ...following)
      },
      async lock(instanceId) {
        locks.change(instanceId)
        return tx.policyRevisions.lock(instanceId)
      },
      async upgrade(instanceIds) {
        await tx.policyRevisions.upgrade(instanceIds)
        for (const instanceId of instanceIds) locks.upgrade(instanceId)
      },
    },
    accounts: {
      ...tx.accounts,
      async lock(accounts) {
        const pools = await tx.accounts.lock(accounts)
        for (const account of pools.keys()) locks.take('accounts', account)
        return pools
      },
      async open(wanted) {
        for (const { account } of wanted) locks.take('accounts', account)
        return tx.accounts.open(wanted)
      },
      async save(pools) {
        locks.require(
          'accounts',
          pools.map(({ account }) => account),
        )
        await tx.accounts.save(pools)
      },
    },
    usage: {
      ...tx.usage,
      async deliver(delivery) {
        locks.require('devices', [delivery.deviceId])
        await tx.usage.deliver(delivery)
      },
    },
    edge: watchedEdge(tx.edge, locks),
  }
}

function watchedEdge(edge: Transaction['edge'], locks: Locks): Transaction['edge'] {
  const requireAccounts = (deviceId: string, accounts: readonly AccountId[]): void => {
    locks.require('devices', [deviceId])
    locks.require('accounts', accounts)
  }
  return {
    ...edge,
    devices: {
      ...edge.devices,
      async lock(id) {
        locks.take('devices', id)
        return edge.devices.lock(id)
      },
      async lockSome(ids) {
        const found = await edge.devices.lockSome(ids)
        for (const id of [...found.keys()].sort()) locks.take('devices', id)
        return found
      },
      async saveSome(changes) {
        locks.require(
          'devices',
          changes.map(({ device }) => device.id),
        )
        await edge.devices.saveSome(changes)
      },
      async insert(device) {
        locks.take('devices', device.id)
        await edge.devices.insert(device)
      },
      async save(device) {
        locks.require('devices', [device.id])
        await edge.devices.save(device)
      },
    },
    epochs: {
      ...edge.epochs,
      async saveSome(changes) {
        locks.require(
          'devices',
          changes.map(({ epoch }) => epoch.deviceId),
        )
        await edge.epochs.saveSome(changes)
      },
      async insert(epoch) {
        locks.require('devices', [epoch.deviceId])
        await edge.epochs.insert(epoch)
      },
      async save(epoch) {
        locks.require('devices', [epoch.deviceId])
        await edge.epochs.save(epoch)
      },
    },
    segments: {
      ...edge.segments,
      async append(...segments) {
        locks.require(
          'devices',
          segments.map(({ deviceId }) => deviceId),
        )
        await edge.segments.append(...segments)
      },
    },
    deviceAccounts: {
      ...edge.deviceAccounts,
      async save(records) {
        for (const { deviceId, account } of records) requireAccounts(deviceId, [account])
        await edge.deviceAccounts.save(records)
      },
    },
    shortages: {
      ...edge.shortages,
      async save(shortage) {
        locks.require('accounts', [shortage.account])
        await edge.shortages.save(shortage)
      },
    },
  }
}
