import { forgetAnswers } from '../../src/cloud/service-api/idempotency-key.ts'
import type { Pool, UsageRecord } from '../../src/cloud/storage/records.ts'
import type { EntryBodyWire } from '../../src/protocol/edge/sync.ts'
import { openImage } from '../twin/twin-database.ts'
import { query } from '../audit/query.ts'
import type { Defect } from './defects.ts'
import { type Delivered, instead } from './twin-defects.ts'
import { payloadOf } from './payload.ts'

const FIFTY = 50_000_000n

function generous<K>(pools: ReadonlyMap<K, Pool>): ReadonlyMap<K, Pool> {
  return new Map(
    [...pools].map(([id, pool]) => [
      id,
      { ...pool, capTarget: pool.capTarget === null ? null : pool.capTarget + FIFTY },
    ]),
  )
}

function withNothingWithheld<K>(pools: ReadonlyMap<K, Pool>): ReadonlyMap<K, Pool> {
  return new Map([...pools].map(([id, pool]) => [id, { ...pool, withheld: 0n }]))
}

function honest(pool: Pool): Pool {
  return {
    ...pool,
    capTarget: pool.capTarget === null || pool.capTarget < FIFTY ? pool.capTarget : pool.capTarget - FIFTY,
  }
}

/** Writes an entry's usage records a second time. */
function againOf(text: string, deviceId: string, epoch: number, now: number): UsageRecord[] {
  const body = JSON.parse(text) as EntryBodyWire
  return body.items.flatMap(({ item, version, outcome, parts }) =>
    parts.map(({ lineItemId, charged }): UsageRecord => ({
      correlationId: body.correlationId,
      usageTime: body.at,
      writeTime: now,
      requesterType: body.requester.type,
      requesterValue: body.requester.value,
      accountId: 'customer',
      instanceId: body.instanceId,
      activationId: lineItemId,
      quantity: null,
      used: null,
      item,
      version,
      count: { digits: 1n, scale: 0 },
      operation: 'REQUEST',
      status: outcome,
      tokens: BigInt(charged),
      source: { kind: 'device', deviceId, epoch, entry: body.n },
      metaData: null,
    })),
  )
}

export const TWIN_DEFECTS: readonly Defect[] = [
  {
    name: 'acknowledge-before-commit',
    is: 'the twin answers before its commit is flushed: a crash takes the last ones',
    always: ['twin-down', 'twin-death'],
    twin: () => {
      const images: Buffer[] = []
      return {
        onCommit: (database) => {
          images.push(database.serialize())
          images.splice(0, images.length - 4)
        },
        onTwinEnd: (database) => {
          const [oldest] = images
          images.length = 0
          if (oldest === undefined) return database
          database.close()
          return openImage(oldest)
        },
      }
    },
  },
  {
    name: 'dedupe-expires',
    is: 'the twin forgets after ten minutes what it has billed: a late repetition is billed again',
    always: ['weather'],
    twin: () => {
      const receivedAt = new Map<string, number>()
      return {
        operation: instead<Delivered>('sync', async ({ params, body: { segment } }, twin, work) => {
          const { epoch, seq } = payloadOf(segment) as { epoch: number; seq: number }
          const key = `${params.deviceId}/${epoch}/${seq}`
          const received = receivedAt.get(key)
          const answer = await work()
          if (received === undefined) receivedAt.set(key, twin.now())
          else if (twin.now() - received > 600_000) {
            await twin.store.transaction(async (tx) => {
              const { entries } = payloadOf(segment) as { entries: { bodies: string[] } }
              for (const each of entries.bodies) {
                await tx.usage.append(againOf(each, params.deviceId, epoch, twin.now()))
              }
            })
          }
          return answer
        }),
      }
    },
  },
  {
    name: 'forgets-answers-by-any-clock',
    is: 'a twin whose clock jumps forgets the answers of idempotency keys: a repeated request is charged again',
    always: ['cloud-repeats', 'twin-clock'],
    without: ['clock-confirmed'],
    twin: () => ({
      begin: ({ store, now }, every) => {
        every(60_000, () => forgetAnswers(store, now()))
      },
    }),
  },
  {
    name: 'release-at-expiry',
    is: 'the twin takes back what a device holds when its grant has expired, whatever the device has done with it',
    always: ['partition'],
    twin: () => ({
      begin: (twin, every) => {
        every(60_000, () =>
          twin.store.transaction(async (tx) => {
            for (const device of await tx.edge.devices.find({}, 0, 100)) {
              if (device.lastSyncAt === null || twin.now() - device.lastSyncAt < 30 * 60_000) continue
              const records = await tx.edge.deviceAccounts.ofEpoch(device.id, device.epoch)
              for (const record of records.values()) {
                const held = record.granted - record.returned - record.used + record.refunded
                const [pool] = [...(await tx.accounts.lock([record.account])).values()]
                if (held <= 0n || record.unlimited || pool === undefined || pool.grantedOut < held) continue
                await tx.edge.deviceAccounts.save([{ ...record, returned: record.returned + held }])
                await tx.accounts.save([{ ...pool, grantedOut: pool.grantedOut - held }])
              }
            }
          }),
        )
      },
    }),
  },
  {
    name: 'claw-back',
    is: 'when a cap is lowered, the twin takes back at once what devices hold above it',
    always: ['quantity', 'partition'],
    twin: () => ({
      begin: (twin, every) => {
        every(5_000, () =>
          twin.store.transaction(async (tx) => {
            for (const device of await tx.edge.devices.find({}, 0, 100)) {
              const records = await tx.edge.deviceAccounts.ofEpoch(device.id, device.epoch)
              for (const record of records.values()) {
                const [pool] = [...(await tx.accounts.lock([record.account])).values()]
                if (pool === undefined || pool.capTarget === null || record.unlimited) continue
                const above = pool.charged + pool.grantedOut - pool.capTarget
                const held = record.granted - record.returned - record.used + record.refunded
                const taken = above < held ? above : held
                if (taken <= 0n) continue
                await tx.edge.deviceAccounts.save([{ ...record, returned: record.returned + taken }])
                const out = pool.charged + pool.grantedOut - taken
                const capInForce = pool.capTarget > out ? pool.capTarget : out
                await tx.accounts.save([{ ...pool, grantedOut: pool.grantedOut - taken, capInForce }])
              }
            }
          }),
        )
      },
    }),
  },
  {
    name: 'no-fence-at-attach',
    is: 'an attach leaves the epoch before it able to earn grants',
    always: ['wipe'],
    twin: () => ({
      transaction: (tx, database) => {
        database.exec('DROP INDEX IF EXISTS epochs_one_active')
        const epochs = {
          ...tx.edge.epochs,
          save: (epoch: Parameters<typeof tx.edge.epochs.save>[0]) =>
            tx.edge.epochs.save(
              epoch.fenceReason === 'SUPERSEDED' && epoch.status === 'FENCED'
                ? { ...epoch, status: 'ACTIVE', fencedAt: null, fenceReason: null }
                : epoch,
            ),
        }
        return { ...tx, edge: { ...tx.edge, epochs } }
      },
    }),
  },
  {
    name: 'grants-at-attach',
    is: 'an attach grants tokens, of which a device never hears when its answer is lost',
    always: ['wipe'],
    twin: () => ({
      operation: instead('attach', async ({ params: { deviceId } }, twin, work) => {
        const answer = await work()
        await twin.store.transaction(async (tx) => {
          const device = await tx.edge.devices.lock(deviceId)
          const [before] = (await tx.edge.deviceAccounts.ofDevice(deviceId)).filter(({ unlimited }) => !unlimited)
          if (device === undefined || before === undefined) return
          const [pool] = [...(await tx.accounts.lock([before.account])).values()]
          if (pool === undefined || pool.capTarget === null) return
          if (pool.charged + pool.grantedOut + 1_000_000n > pool.capTarget) return
          const { epoch } = device
          const zero = { used: 0n, refunded: 0n, returned: 0n, branchUsed: 0n, branchOverspend: 0n }
          await tx.edge.deviceAccounts.save([{ ...before, ...zero, epoch, granted: 1_000_000n }])
          await tx.accounts.save([{ ...pool, grantedOut: pool.grantedOut + 1_000_000n }])
        })
        return answer
      }),
    }),
  },
  {
    name: 'grant-beyond-the-pool',
    is: 'a grant is not compared with what the pool has left',
    always: ['quantity'],
    twin: () => ({
      transaction: (tx, database) => {
        database.pragma('ignore_check_constraints = ON')
        return {
          ...tx,
          accounts: {
            ...tx.accounts,
            lock: async (accounts) => generous(await tx.accounts.lock(accounts)),
            open: async (wanted) => generous(await tx.accounts.open(wanted)),
            save: (pools) => tx.accounts.save(pools.map(honest)),
          },
        }
      },
    }),
  },
  {
    name: 'sells-what-is-withheld',
    is: 'a twin that was restored from a backup sells again what its sales mark has counted',
    always: ['twin-restore', 'cloud-request'],
    without: ['clone', 'restore', 'wipe'],
    load: { devices: 3, hours: 2, requests: 60 },
    twin: () => ({
      transaction: (tx) => ({
        ...tx,
        accounts: {
          ...tx.accounts,
          lock: async (accounts) => withNothingWithheld(await tx.accounts.lock(accounts)),
          open: async (wanted) => withNothingWithheld(await tx.accounts.open(wanted)),
        },
      }),
    }),
  },
  {
    name: 'archive-forgets-entries',
    is: 'the twin keeps nothing of archived entries: those that two copies have in common are billed for both',
    always: ['archive', 'clone', 'restore'],
    twin: () => ({ onCommit: (database) => void query(database, 'DELETE FROM archived_entries').run() }),
  },
  {
    name: 'totals-start-anew',
    is: 'the usage records of each delivery count the used tokens from 0',
    twin: () => ({
      transaction: (tx) => ({
        ...tx,
        usage: {
          ...tx.usage,
          deliver: (delivery) => tx.usage.deliver({ ...delivery, inputs: { ...delivery.inputs, used: new Map() } }),
        },
      }),
    }),
  },
  {
    name: 'bill-branches-again',
    is: 'entries that two copies have in common are billed for both',
    always: ['clone', 'restore'],
    twin: () => ({
      transaction: (tx) => ({
        ...tx,
        edge: { ...tx.edge, entries: { ...tx.edge.entries, hashes: async () => new Set<string>() } },
      }),
    }),
  },
]
