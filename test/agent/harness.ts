// Set-up of the agent's tests: a temporary directory with a journal, an attached device with a policy and a grant, and
// parts of requests and policies.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { type JournalOptions, openJournal } from '../../src/agent/platform/sqlite/journal.ts'
import type { JournalLimits } from '../../src/agent/platform/sqlite/journal-file.ts'
import type { CallTraits, JournalCall } from '../../src/agent/platform/sqlite/journal-handler.ts'
import type { StartRunner } from '../../src/agent/platform/sqlite/journal-runner.ts'
import type {
  AccountState,
  ClockStamp,
  GrantedAccount,
  Identity,
  Journal,
  PendingEntry,
  SealRequest,
  Snapshot,
} from '../../src/agent/ledger/journal.ts'
import { SEGMENT_ENTRIES_MAX } from '../../src/protocol/edge/sync.ts'
import { unverifiedText } from '../../src/protocol/signing.ts'
import { newLedger } from '../../sim/device/new-ledger.ts'
import type { PolicyInForce } from '../../src/agent/policy/active-policies.ts'
import type { AccountId, Posting } from '../../src/core/accounts/account.ts'
import { compilePolicy } from '../../src/core/rules/compile.ts'
import { policyDocument, policyOf } from '../../src/protocol/edge/policy-document.ts'
import { BEGIN } from './sync/fake-time.ts'
import { DEVICE, INSTANCE } from './sync/fake-cloud.ts'
import { newSigner } from '../support/new-signer.ts'
import { policyWith } from './sync/policies.ts'

/** A directory that is removed when the test is over. */
export function temporaryDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-agent-'))
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }))
  return directory
}

export const JOURNAL_LIMITS: JournalLimits = {
  pagesMax: 100_000,
  diskReservePages: 256,
  retentionMs: 7 * 86_400_000,
  retainedBytesMax: 1_000_000_000,
  answersMax: 100,
  recentEntries: 1_000,
  pastRulesBytesMax: 1_000_000,
  segmentEntriesMax: SEGMENT_ENTRIES_MAX,
}

type JournalChanges = Partial<Omit<JournalOptions, 'limits'>> & { readonly limits?: Partial<JournalLimits> }

/** The journal of a directory, closed when the test is over. Sealed segments carry no real signature. */
export async function journalIn(
  directory: string,
  changes: JournalChanges = {},
  runner?: StartRunner,
): Promise<Journal> {
  const options: JournalOptions = {
    path: join(directory, 'journal.db'),
    sign: async (payload) => unsigned(payload),
    now: () => BEGIN,
    log: { info: () => undefined, warn: () => undefined },
    onBroken: () => undefined,
    ...changes,
    limits: { ...JOURNAL_LIMITS, ...changes.limits },
  }
  const journal = await openJournal(options, runner)
  onTestFinished(() => journal.close())
  return journal
}

/** A call for a handler alone, at the time 0. */
export function callOf(name: JournalCall['name'], work: JournalCall['work'], traits: CallTraits = {}): JournalCall {
  return { name, work, traits, now: 0, done: () => undefined }
}

/** A compact JWS in form: the payload stands where it always stands. */
export function unsigned(payload: string): string {
  return `e30.${Buffer.from(payload).toString('base64url')}.AA`
}

export function payloadOf(document: string): unknown {
  return JSON.parse(unverifiedText(document) ?? '')
}

export const IDENTITY: Identity = {
  deviceId: DEVICE,
  keyId: 'key',
  instanceIds: [INSTANCE],
  trustedKeys: ['{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}'],
  edgeUrl: 'https://cloud.test/edge/api/v1',
  serviceUrl: 'https://cloud.test/api',
  pushUrl: null,
  suspension: null,
}

export const OTHER_KEY = '{"kty":"OKP","crv":"Ed25519","x":"Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE"}'

export const STAMP: ClockStamp = {
  clock: { bootId: 'boot-1', sinceBoot: 10_000, earliest: BEGIN, latest: null },
  grantAgedMs: 0,
}

/** Enrolled, attached, and granted these amounts. */
export async function attach(journal: Journal, granted: Readonly<Record<AccountId, bigint>>): Promise<void> {
  await journal.saveIdentity(IDENTITY)
  await journal.attach(1)
  await grant(journal, 1, granted)
}

/** A segment with nothing to say, and the grant that answers it. Returns its `seq`. */
export async function grant(
  journal: Journal,
  term: number,
  granted: Readonly<Record<AccountId, bigint>>,
): Promise<number> {
  const { seq } = await journal.seal(SEAL)
  const accounts = Object.entries(granted).map(([account, amount]) => grantedAccount(account, amount))
  await journal.acknowledge(
    seq,
    { term, lifetimeMs: 86_400_000, expiresAt: BEGIN + 86_400_000, agedMs: 0, accounts },
    null,
  )
  return seq
}

export function grantedAccount(account: AccountId, granted: bigint): GrantedAccount {
  return { account, granted, exhausted: false, unlimited: false }
}

export const SEAL: SealRequest = {
  salt: 'salt-of-16-chars',
  bootId: 'boot-1',
  clock: { now: BEGIN, earliest: BEGIN, latest: null },
  topUpRequests: [],
  needs: [],
  policies: [],
  returns: [],
  grant: null,
  final: false,
}

/** An entry with these postings, as the journal takes it; its body has what the journal reads of it. */
export function entry(
  n: number,
  postings: readonly Posting[],
  { moves = 'used', idempotencyRecord = null, ...more }: Partial<PendingEntry> = {},
): PendingEntry {
  const kind = moves === 'used' ? 'access' : 'refund'
  const written = postings.map(({ account, amount }) => ({ account, amount: String(amount) }))
  return { n, body: JSON.stringify({ n, kind, postings: written }), moves, postings, idempotencyRecord, ...more }
}

export function accountState(state: Partial<AccountState>): AccountState {
  return { granted: 0n, used: 0n, refunded: 0n, returned: 0n, exhausted: false, unlimited: false, ...state }
}

/** A device that is enrolled and attached, and otherwise new. */
export function snapshotWith(changes: Partial<Snapshot> = {}): Snapshot {
  return { ...newLedger(), identity: IDENTITY, ...changes }
}

/** A policy as it is in force: `print` costs one token, for everybody. */
export async function policyInForce(...how: Parameters<typeof policyWith>): Promise<PolicyInForce> {
  const { jwk } = await newSigner()
  const document = policyDocument.parse({ ...policyWith(...how), trustedKeys: [jwk] })
  return { document, compiled: compilePolicy(policyOf(document)) }
}

/** The body of an access request, as JSON makes it. */
export function accessBody(count: number, item = 'print'): Record<string, unknown> {
  return { requester: { type: 'user', value: 'ada' }, requestedItems: [{ item, count }] }
}
