import type { HttpExchange, HttpRequest } from '../../src/agent/platform/http/exchange.ts'
import type { Database } from '../../src/cloud/storage/sqlite/database.ts'
import { sha256, signDocument } from '../../src/protocol/signing.ts'
import { foldDatabase } from '../../src/agent/platform/sqlite/pending-batches.ts'
import type { Disk } from '../device/disk.ts'
import { withEntryTable } from '../device/entry-table.ts'
import { type KeyPair, keyPair } from '../world/signatures.ts'
import type { Defect } from './defects.ts'
import { payloadOf } from './payload.ts'
import { NO_SPACE } from '../device/volatile-memory.ts'

function change({ database }: { readonly database: Database }, sql: string, ...values: readonly unknown[]): void {
  database.prepare(sql).run(...values)
}

/** The disk when the pending segment was sealed. */
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

/** Signed time that covers another response. */
async function timeFor(answer: string, time: string): Promise<string> {
  const text = JSON.stringify({ ...payloadOf(time), answer: sha256(answer) })
  return signDocument('time', text, keyPair('twin').signer)
}

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

function bodyOf({ body }: HttpRequest): Record<string, string> {
  return JSON.parse(body ?? '{}') as Record<string, string>
}

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

/** Commits without a flush: a power cut restores the earlier state. */
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

export const DEVICE_DEFECTS: readonly Defect[] = [
  {
    name: 'answer-before-commit',
    is: 'an application receives its response before its entry is on the disk',
    device: () => ({
      journal: (journal) => ({
        ...journal,
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
          ...journal,
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
        withEntryTable(database, () =>
          database.exec(`
          DELETE FROM entry WHERE id > (SELECT entry_base + sealed_entry FROM state);
          UPDATE state SET last_entry = sealed_entry, entry_head = sealed_head;
          UPDATE account SET reserved = 0, burned = 0;
          UPDATE account SET used = sealed_used, refunded = sealed_refunded`),
        )
      },
    }),
  },
  {
    name: 'grant-not-stored',
    is: 'a grant is spent from without being stored',
    always: ['kill'],
    device: () => ({
      journal: (journal) => ({
        ...journal,
        acknowledge: (seq, _grant, confirmation) => journal.acknowledge(seq, null, confirmation),
      }),
    }),
  },
  {
    name: 'resends-nothing',
    is: 'a device sends no segments of earlier epochs to a restored cloud',
    always: ['twin-restore', 'hold', 'refused-segments'],
    device: () => ({
      journal: (journal) => ({ ...journal, sealedEarlier: async () => null }),
    }),
  },
  {
    name: 'return-not-durable',
    is: 'what a device returns is reported to the twin, and forgotten by a restart',
    always: ['release', 'kill', 'death-at-write'],
    device: () => {
      let returned = new Map<string, bigint>()
      return {
        journal: (journal) => ({
          ...journal,
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
    is: 'after a power cut a device continues from what its disk says was used, as if no block had been open',
    always: ['death-after-answer'],
    load: { devices: 2, hours: 1, requests: 200 },
    device: () => ({
      onPowerCut: (disk) => {
        foldDatabase(disk.database)
        change(disk, 'UPDATE account SET reserved = 0')
      },
    }),
  },
  {
    name: 'stale-log',
    is: 'after a crash a device believes a volatile log that does not hold its last entries',
    always: ['death-after-answer', 'slow-disk'],
    device: () => ({ left: (left) => (left === undefined ? left : { ...left, entries: left.entries.slice(0, -2) }) }),
  },
  {
    name: 'log-turns-late',
    is: 'the volatile log takes new entries before its turn, and keeps them if the turn fails',
    always: ['log-full'],
    load: { devices: 2, hours: 1, requests: 200 },
    device: () => ({
      log: (log) => {
        let failed: Error | null = null
        return {
          ...log,
          turn: () => {
            failed = null
            try {
              log.turn()
            } catch (error) {
              failed = error as Error
            }
          },
          write: (entries) => {
            log.write(entries)
            if (failed !== null) throw failed
          },
        }
      },
    }),
  },
  {
    name: 'log-keeps-refused',
    is: 'a volatile log without space takes nothing back',
    always: ['log-full'],
    load: { devices: 2, hours: 1, requests: 200 },
    device: () => ({
      log: (log, memory) => ({
        ...log,
        retract: (from) => {
          if (memory.full.size > 0) throw NO_SPACE
          log.retract(from)
        },
      }),
    }),
  },
]
