/**
 * State of an enrolled, offline device with rules and a practically unlimited grant, written through the agent's own
 * journal.
 */
import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { openKeyFile } from '../../src/agent/platform/key-file/key-file.ts'
import { BLOCK_ENTRIES, insertEntries } from '../../src/agent/platform/sqlite/entry-blocks.ts'
import { openJournal } from '../../src/agent/platform/sqlite/journal.ts'
import { openDatabase } from '../../src/agent/platform/sqlite/open-database.ts'
import { openTimeSource } from '../../src/agent/platform/system/time-source.ts'
import { policyToWire } from '../../src/protocol/edge/policy-document.ts'
import type { SyncAnswerWire } from '../../src/protocol/edge/sync.ts'
import { CHAIN_START, generateKey, publicJwkOf, signDocument, thumbprint } from '../../src/protocol/signing.ts'
import { ACCOUNTS, FUNDS, workloadPolicy } from '../workload.ts'

const DAY_MS = 24 * 60 * 60 * 1000

/** The discard port: the device stays offline. */
const NO_CLOUD = 'http://127.0.0.1:9/dynamicmonetization'

export const JOURNAL_FILE = 'journal.db'

export interface StateContents {
  /** Of an earlier epoch, delivered. */
  readonly entries: number
  /** That do not apply. */
  readonly lineItems: number
}

/** @param directory the agent's state directory, which must not exist */
export async function prepareAgentState(
  directory: string,
  { entries, lineItems }: StateContents = { entries: 0, lineItems: 0 },
): Promise<void> {
  const time = openTimeSource()
  const now = time.wall()
  const cloud = await cloudKey()
  const policy = workloadPolicy(now, lineItems)
  const journal = await openJournal({
    path: join(directory, JOURNAL_FILE),
    limits: {
      ...{ pagesMax: 10_000, diskReservePages: 256, retentionMs: DAY_MS, retainedBytesMax: 1_000_000, answersMax: 1 },
      ...{ recentEntries: 1_000, pastRulesBytesMax: 1_000_000, segmentEntriesMax: 1_000 },
    },
    sign: (payload) => signDocument('segment', payload, key.signer),
    now: () => now,
    log: { info: () => undefined, warn: () => undefined },
    onBroken: (error) => {
      throw error
    },
  })
  const key = await openKeyFile({ path: join(directory, 'device.key'), create: true })
  const deviceId = randomUUID()
  await journal.saveIdentity({
    deviceId,
    keyId: key.signer.keyId,
    instanceIds: [policy.instanceId],
    trustedKeys: [JSON.stringify(cloud.publicJwk)],
    edgeUrl: NO_CLOUD,
    serviceUrl: NO_CLOUD,
    pushUrl: null,
    suspension: null,
  })
  const terms = {
    instanceName: '',
    issuedAt: now,
    usableForMs: 30 * DAY_MS,
    grantHorizonMs: DAY_MS,
    trustedKeys: [cloud.publicJwk],
  }
  const document = await signDocument('policy', JSON.stringify(policyToWire(policy, terms)), cloud.signer)
  await journal.savePolicy({ instanceId: policy.instanceId, revision: policy.revision, document }, null)
  await journal.attach(1)
  const { seq, hash } = await journal.seal({
    salt: randomUUID(),
    bootId: time.bootId,
    clock: { now, earliest: now, latest: now },
    topUpRequests: [],
    needs: [],
    policies: [{ instanceId: policy.instanceId, revision: policy.revision }],
    returns: [],
    grant: null,
    final: false,
  })
  const accounts = ACCOUNTS.map((account) => ({ account, granted: FUNDS, exhausted: false, unlimited: false }))
  const grant = { term: 1, lifetimeMs: 30 * DAY_MS, expiresAt: now + 30 * DAY_MS }
  const policies = [{ instanceId: policy.instanceId, revision: policy.revision }]
  const answer: SyncAnswerWire = {
    outcome: 'MERGED',
    ...{ deviceId, epoch: 1, seq, hash, policies, directives: [], releases: [], nextSyncMs: DAY_MS, time: now },
    receipt: { epoch: 1, seq, hash, entries: { from: 1, to: 0, head: CHAIN_START }, retainUntil: now },
    grant: {
      ...grant,
      accounts: accounts.map((account) => ({ ...account, granted: String(FUNDS), available: '0' })),
    },
  }
  await journal.acknowledge(
    seq,
    { ...grant, agedMs: 0, accounts },
    { time: now, policies },
    { document: await signDocument('sync-answer', JSON.stringify(answer), cloud.signer), retainUntil: now },
  )
  const clock = { bootId: time.bootId, sinceBoot: time.sinceBoot(), earliest: now, latest: now }
  await journal.saveClock({ clock, grantAgedMs: 0 })
  await journal.close()
  time.close()
  addHistory(join(directory, JOURNAL_FILE), entries)
}

/** Entries for each transaction. */
const ADDED_ENTRIES = 64 * BLOCK_ENTRIES

function addHistory(path: string, entries: number): void {
  const database = openDatabase(path)
  try {
    for (let first = 1; first <= entries; first += ADDED_ENTRIES) {
      const count = Math.min(ADDED_ENTRIES, entries - first + 1)
      const added = Array.from({ length: count }, (_, index) => oldEntry(first + index))
      database.transaction(() => insertEntries(database, { id: BigInt(first), n: BigInt(first) }, added))()
    }
    database.prepare('UPDATE state SET entry_base = ?').run(entries)
  } finally {
    database.close()
  }
}

function oldEntry(n: number): { readonly body: string; readonly inputs: string } {
  const correlationId = randomUUID()
  const postings = ACCOUNTS.map((account) => ({ account, amount: '1500000' }))
  const body = JSON.stringify({ n, kind: 'access', at: 1_700_000_000_000 + n, correlationId, items: [], postings })
  return { body, inputs: `1;${n}P;` }
}

async function cloudKey() {
  const privateKey = generateKey()
  const publicJwk = publicJwkOf(privateKey)
  return { publicJwk, signer: { keyId: await thumbprint(publicJwk), privateKey } }
}
