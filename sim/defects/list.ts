/**
 * All deliberate defects, each a rule of the protocol that is left out or broken at a seam. The sound parts are the
 * product's own; here stands only what is wrong.
 */
import { base64url } from 'jose'
import type { HttpExchange, HttpRequest } from '../../src/agent/adapters/cloud-http/exchange.ts'
import type { Journal } from '../../src/agent/app/journal.ts'
import type { Database } from '../../src/cloud/adapters/sqlite/database.ts'
import type { Pool, UsageRecord } from '../../src/cloud/app/records.ts'
import type { EntryBodyWire } from '../../src/protocol/edge/sync.ts'
import { sha256, signDocument } from '../../src/protocol/signing.ts'
import type { Disk } from '../device/disk.ts'
import { openImage } from '../twin/twin-database.ts'
import { type KeyPair, keyPair } from '../world/signatures.ts'
import type { PlanOptions } from '../plan.ts'
import type { Defect } from './defects.ts'

/** One statement on a database, with its values. */
function change({ database }: { readonly database: Database }, sql: string, ...values: readonly unknown[]): void {
  database.prepare(sql).run(...values)
}

/** What the disk held when the segment under way was sealed. */
interface BeforeSeal {
  readonly state: Record<string, unknown>
  readonly accounts: readonly { id: string; used: bigint; refunded: bigint; returned: bigint }[]
}

function beforeSeal({ database }: Disk): BeforeSeal {
  return {
    state: database.prepare('SELECT sealed_entry, sealed_head, last_seq, segment_head FROM state').get() as Record<
      string,
      unknown
    >,
    accounts: database
      .prepare('SELECT id, sealed_used AS used, sealed_refunded AS refunded, sealed_returned AS returned FROM account')
      .all() as BeforeSeal['accounts'],
  }
}

/** A journal as an object of functions, some of which a defect replaces. */
function whole(journal: Journal): Journal {
  return {
    read: () => journal.read(),
    append: (...args) => journal.append(...args),
    appendReserved: (...args) => journal.appendReserved(...args),
    seal: (...args) => journal.seal(...args),
    acknowledge: (...args) => journal.acknowledge(...args),
    sealed: (...args) => journal.sealed(...args),
    sealedEarlier: (...args) => journal.sealedEarlier(...args),
    fence: () => journal.fence(),
    attach: (...args) => journal.attach(...args),
    saveIdentity: (...args) => journal.saveIdentity(...args),
    savePolicy: (...args) => journal.savePolicy(...args),
    saveClock: (...args) => journal.saveClock(...args),
    proofs: (...args) => journal.proofs(...args),
    recent: (...args) => journal.recent(...args),
    find: (...args) => journal.find(...args),
    close: () => journal.close(),
  }
}

/** Signed time that goes with another answer. */
async function timeFor(answer: string, time: string): Promise<string> {
  const text = JSON.stringify({ ...payloadOf(time), answer: sha256(answer) })
  return signDocument('time', text, keyPair('twin').signer)
}

/** What was sent before is sent with another salt, signed by the device. */
function resalted(exchange: HttpExchange, key: KeyPair): HttpExchange {
  const sent = new Set<string>()
  return async (request) => {
    if (!request.url.endsWith('/sync')) return exchange(request)
    const body = bodyOf(request)
    const { segment = '' } = body
    if (!sent.has(segment)) {
      sent.add(segment)
      return exchange(request)
    }
    const salt = sha256(`${segment}${sent.size}`).slice(0, 32)
    const again = await signDocument('segment', JSON.stringify({ ...payloadOf(segment), salt }), key.signer)
    return exchange({ ...request, body: JSON.stringify({ ...body, segment: again }) })
  }
}

/** Pools that seem to have fifty tokens more. */
const FIFTY = 50_000_000n

function generous<K>(pools: ReadonlyMap<K, Pool>): ReadonlyMap<K, Pool> {
  return new Map(
    [...pools].map(([id, pool]) => [
      id,
      { ...pool, capTarget: pool.capTarget === null ? null : pool.capTarget + FIFTY },
    ]),
  )
}

function honest(pool: Pool): Pool {
  return {
    ...pool,
    capTarget: pool.capTarget === null || pool.capTarget < FIFTY ? pool.capTarget : pool.capTarget - FIFTY,
  }
}

/** The lines of the bill that an entry makes, once more. */
function againOf(text: string, deviceId: string, incarnation: number, now: number): UsageRecord[] {
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
      source: { kind: 'device', deviceId, incarnation, entry: body.n },
      metaData: null,
    })),
  )
}

/** As if the segment under way had never been sealed. */
function unseal(disk: Disk, { state, accounts }: BeforeSeal): void {
  const { changes } = disk.database.prepare("DELETE FROM segment WHERE state = 'UNACKNOWLEDGED'").run()
  if (changes === 0) return
  change(
    disk,
    'UPDATE state SET sealed_entry = :sealed_entry, sealed_head = :sealed_head, last_seq = :last_seq, segment_head = :segment_head',
    state,
  )
  for (const { id, used, refunded, returned } of accounts) {
    change(
      disk,
      'UPDATE account SET sealed_used = ?, sealed_refunded = ?, sealed_returned = ? WHERE id = ?',
      used,
      refunded,
      returned,
      id,
    )
  }
}

/** The payload of a signed document, with another way to make one of it. */
function payloadOf(document: string): Record<string, unknown> {
  return JSON.parse(new TextDecoder().decode(base64url.decode(document.split('.')[1] ?? ''))) as Record<string, unknown>
}

function bodyOf({ body }: HttpRequest): Record<string, string> {
  return JSON.parse(body ?? '{}') as Record<string, string>
}

/** Answers to what ends in `path` pass through here. */
function answersOf(
  path: string,
  exchange: HttpExchange,
  rewrite: (request: HttpRequest, said: { answer: string; time: string }) => Promise<{ answer: string; time: string }>,
): HttpExchange {
  return async (request) => {
    const answer = await exchange(request)
    if (!request.url.endsWith(path) || answer.status !== 200) return answer
    const said = JSON.parse(answer.body) as { answer: string; time: string }
    return { ...answer, body: JSON.stringify(await rewrite(request, said)) }
  }
}

/** A commit that is not flushed: what the disk held before it is what a power cut leaves. */
function unflushed(commitsKept: number) {
  const images: Buffer[] = []
  return {
    onTaken: (disk: Disk) => {
      images.push(disk.image())
      images.splice(0, images.length - commitsKept - 1)
    },
    onPowerCut: (disk: Disk) => {
      const [oldest] = images
      if (oldest !== undefined) disk.put(oldest)
      images.length = 0
    },
  }
}

export const DEFECTS: readonly Defect[] = [
  {
    name: 'answer-before-commit',
    is: 'an application is told before its entry is on the disk',
    device: () => ({
      journal: (journal) => ({
        ...whole(journal),
        append: async (...args) => void journal.append(...args).catch(() => undefined),
      }),
    }),
  },
  {
    name: 'skip-flush',
    is: 'a commit of the device is not flushed: a power cut takes the last ones',
    always: ['power-cut', 'death-at-write'],
    device: () => unflushed(3),
  },
  {
    name: 'skip-seal',
    is: 'a segment is sent without being sealed: after a crash another one is made in its place',
    always: ['kill', 'death-at-write', 'weather'],
    device: () => {
      let before: BeforeSeal | null = null
      return {
        journal: (journal, disk) => ({
          ...whole(journal),
          seal: (order) => {
            before = beforeSeal(disk)
            return journal.seal(order)
          },
        }),
        onProcessEnd: (disk) => {
          if (before !== null) unseal(disk, before)
          before = null
        },
      }
    },
  },
  {
    name: 'new-segment-on-retry',
    is: 'after a lost answer the same entries go up in a segment that is made anew',
    always: ['weather'],
    device: () => ({
      exchange: (exchange, key) => resalted(exchange, key),
    }),
  },
  {
    name: 'forget-the-tail',
    is: 'a start does not read the entries that were not sent yet',
    always: ['kill'],
    device: () => ({
      onProcessEnd: ({ database }) => {
        database.exec(`
          DELETE FROM entry WHERE id > (SELECT entry_base + sealed_entry FROM state);
          UPDATE state SET last_entry = sealed_entry, entry_head = sealed_head;
          UPDATE account SET reserved = 0, burned = 0;
          UPDATE account SET used = sealed_used, refunded = sealed_refunded`)
      },
    }),
  },
  {
    name: 'grant-not-stored',
    is: 'a grant is spent from without being stored',
    always: ['kill'],
    device: () => ({
      journal: (journal) => ({
        ...whole(journal),
        acknowledge: (seq, _grant, confirmation) => journal.acknowledge(seq, null, confirmation),
      }),
    }),
  },
  {
    name: 'return-not-durable',
    is: 'what a device returns is told to the twin, and forgotten by a restart',
    always: ['release', 'kill', 'death-at-write'],
    device: () => {
      let returned = new Map<string, bigint>()
      return {
        journal: (journal) => ({
          ...whole(journal),
          seal: async (order) => {
            for (const { account, amount } of order.returns) {
              returned.set(account, (returned.get(account) ?? 0n) + amount)
            }
            return journal.seal(order)
          },
        }),
        onProcessEnd: (disk) => {
          for (const [account, amount] of returned) {
            change(
              disk,
              'UPDATE account SET sealed_returned = sealed_returned - ? WHERE id = ? AND sealed_returned >= ?',
              amount,
              account,
              amount,
            )
            change(
              disk,
              'UPDATE account SET returned = returned - ? WHERE id = ? AND returned >= ?',
              amount,
              account,
              amount,
            )
          }
          returned = new Map()
        },
      }
    },
  },
  {
    name: 'any-attach-answer',
    is: 'a device takes the answer to an attach of another life for the one to its own',
    always: ['wipe'],
    device: () => {
      const seen: string[] = []
      return {
        exchange: (exchange) =>
          answersOf('/attach', exchange, async (request, { answer, time }) => {
            const [first = answer] = seen
            seen.push(answer)
            if (first === answer) return { answer, time }
            const { nonce } = bodyOf(request)
            const text = JSON.stringify({ ...payloadOf(first), nonce })
            const signed = await signDocument('attach-answer', text, keyPair('twin').signer)
            return { answer: signed, time: await timeFor(signed, time) }
          }),
      }
    },
  },
  {
    name: 'clock-without-suspend',
    is: 'the clock of a device stands still while it sleeps',
    always: ['suspend'],
    device: () => ({ unseen: (sleptFor) => sleptFor }),
  },
  {
    name: 'burn-nothing',
    is: 'after a power cut a device goes on from what its disk says was used, as if no block had been open',
    always: ['death-after-answer'],
    load: { devices: 2, hours: 1, requests: 200 },
    device: () => ({
      onPowerCut: (disk) => change(disk, 'UPDATE account SET reserved = 0'),
    }),
  },
  {
    name: 'stale-log',
    is: 'after a crash a device believes a volatile log that does not hold its last entries',
    always: ['death-after-answer', 'slow-disk'],
    device: () => ({ left: (left) => (left === undefined ? left : { ...left, entries: left.entries.slice(0, -2) }) }),
  },
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
    twin: () => ({
      sync: (work) => async (deps, device, document, proofs) => {
        const { incarnation, seq } = payloadOf(document) as { incarnation: number; seq: number }
        const recorded = await deps.store.transaction((tx) => tx.edge.segments.get(device.id, incarnation, seq))
        const taken = await work(deps, device, document, proofs)
        if (recorded !== undefined && deps.now() - recorded.receivedAt > 600_000) {
          await deps.store.transaction(async (tx) => {
            const { entries } = payloadOf(document) as { entries: { bodies: string[] } }
            for (const body of entries.bodies) await tx.usage.append(againOf(body, device.id, incarnation, deps.now()))
          })
        }
        return taken
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
            for (const device of await tx.edge.devices.list(null, 0, 100)) {
              if (device.lastSyncAt === null || twin.now() - device.lastSyncAt < 30 * 60_000) continue
              const records = await tx.edge.deviceAccounts.ofIncarnation(device.id, device.incarnation)
              for (const record of records.values()) {
                const held = record.granted - record.returned - record.used + record.refunded
                const [pool] = [...(await tx.accounts.lock([record.account])).values()]
                if (held <= 0n || record.unlimited || pool === undefined || pool.grantedOut < held) continue
                await tx.edge.deviceAccounts.save([{ ...record, returned: record.returned + held }])
                await tx.accounts.save([{ ...pool, grantedOut: pool.grantedOut - held }])
              }
            }
            return false
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
            for (const device of await tx.edge.devices.list(null, 0, 100)) {
              const records = await tx.edge.deviceAccounts.ofIncarnation(device.id, device.incarnation)
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
            return false
          }),
        )
      },
    }),
  },
  {
    name: 'no-fence-at-attach',
    is: 'an attach leaves the incarnation before it able to earn grants',
    always: ['wipe'],
    twin: () => ({
      transaction: (tx, database) => {
        database.exec('DROP INDEX IF EXISTS incarnations_one_active')
        const incarnations = {
          ...tx.edge.incarnations,
          save: (incarnation: Parameters<typeof tx.edge.incarnations.save>[0]) =>
            tx.edge.incarnations.save(
              incarnation.fenceReason === 'SUPERSEDED' && incarnation.status === 'FENCED'
                ? { ...incarnation, status: 'ACTIVE', fencedAt: null, fenceReason: null }
                : incarnation,
            ),
        }
        return { ...tx, edge: { ...tx.edge, incarnations } }
      },
    }),
  },
  {
    name: 'grants-at-attach',
    is: 'an attach grants tokens, of which a device never hears when its answer is lost',
    always: ['wipe'],
    twin: () => ({
      attach: (work) => async (deps, deviceId, request) => {
        const answer = await work(deps, deviceId, request)
        await deps.store.transaction(async (tx) => {
          const device = await tx.edge.devices.lock(deviceId)
          const [before] = (await tx.edge.deviceAccounts.ofDevice(deviceId)).filter(({ unlimited }) => !unlimited)
          if (device === undefined || before === undefined) return
          const [pool] = [...(await tx.accounts.lock([before.account])).values()]
          if (pool === undefined || pool.capTarget === null) return
          if (pool.charged + pool.grantedOut + 1_000_000n > pool.capTarget) return
          const { incarnation } = device
          const zero = { used: 0n, refunded: 0n, returned: 0n, branchUsed: 0n }
          await tx.edge.deviceAccounts.save([{ ...before, ...zero, incarnation, granted: 1_000_000n }])
          await tx.accounts.save([{ ...pool, grantedOut: pool.grantedOut + 1_000_000n }])
        })
        return answer
      },
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
    name: 'grants-while-learning',
    is: 'a twin that was restored from a backup goes on granting what it may have granted to somebody already',
    always: ['twin-restore', 'partition'],
    without: ['clone', 'restore', 'wipe', 'disk-full', 'revoke', 'hold'],
    load: { devices: 3, hours: 2, requests: 60 },
    twin: () => ({
      transaction: (tx) => ({
        ...tx,
        edge: { ...tx.edge, learning: { ...tx.edge.learning, blocked: async () => new Set<string>() } },
      }),
    }),
  },
  {
    name: 'bill-branches-again',
    is: 'entries that two copies have in common are billed for both',
    always: ['clone', 'restore'],
    twin: () => ({
      transaction: (tx, database) => {
        database.exec('DROP INDEX IF EXISTS entries_one_chain')
        return {
          ...tx,
          edge: {
            ...tx.edge,
            entries: {
              ...tx.edge.entries,
              hashes: async () => new Set<string>(),
              append: (entries) =>
                tx.edge.entries.append(
                  entries.map((entry) => ({
                    ...entry,
                    hash: `${entry.hash.slice(0, 56)}${entry.seq.toString(16).padStart(8, '0')}`,
                  })),
                ),
            },
          },
        }
      },
    }),
  },
]

/** @throws Error for a name that there is not; null gives null */
export function defectNamed(name: string | null): Defect | null {
  if (name === null) return null
  const found = DEFECTS.find((defect) => defect.name === name)
  if (found === undefined) throw new Error(`there is no defect ${name}: ${DEFECTS.map((one) => one.name).join(', ')}`)
  return found
}

/** With the faults that a defect needs to show, and without those that would excuse it. */
export function withNeeds(options: PlanOptions, name: string | null): PlanOptions {
  const { always = [], without = [], load } = defectNamed(name) ?? {}
  return {
    ...options,
    ...load,
    always: [...(options.always ?? []), ...always],
    without: [...(options.without ?? []), ...without],
  }
}
