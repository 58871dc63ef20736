/** The areas of mutation testing: which files are mutated, and by which tests. */
export interface Area {
  readonly name: string
  readonly title: string
  /** Least score of the area, percent. */
  readonly target: number
  /** Files that are mutated. */
  readonly mutate: readonly string[]
  /** Tests that run against each mutant: fast ones, which start neither processes nor servers. */
  readonly tests: readonly string[]
  /** Parts of the names of tests that take seconds and kill what others kill. */
  readonly without?: readonly string[]
}

const agent = (...names: readonly string[]): readonly string[] => names.map((name) => `src/agent/${name}.ts`)
const cloud = (...names: readonly string[]): readonly string[] => names.map((name) => `src/cloud/${name}.ts`)
const tests = (...names: readonly string[]): readonly string[] => names.map((name) => `test/${name}.test.ts`)

export const AREAS: readonly Area[] = [
  {
    name: 'core',
    title: 'Core',
    target: 90,
    mutate: ['src/core/**/*.ts'],
    tests: tests('core/**/*'),
  },
  {
    name: 'agent-ledger',
    title: 'Agent: decisions, balances and commits',
    target: 80,
    mutate: agent(
      ...[
        'access/access',
        'access/local-decisions',
        'policy/active-policies',
        'ledger/ledger',
        'ledger/balances',
        'ledger/commits',
        'ledger/commit-schedule',
        'ledger/write-behind',
        'ledger/reservations',
      ],
      ...[
        'ledger/recover-reservations',
        'ledger/demand',
        'ledger/burn-rate',
        'ledger/accounts-in-sight',
        'access/entry-text',
      ],
    ),
    tests: tests(
      ...[
        'agent/access/*',
        'agent/ledger/above-grant',
        'agent/ledger/accounts-in-sight',
        'agent/ledger/balances',
        'agent/ledger/burn-rate',
        'agent/ledger/commits',
        'agent/ledger/ledger',
        'agent/ledger/recover-reservations',
        'agent/ledger/reservations',
        'agent/ledger/demand',
        'agent/ledger/write-behind',
        'agent/policy/active-policies',
        'agent/sessions/bookkeeping',
        'agent/sessions/essential',
        'agent/sessions/sessions',
        'agent/sync/fenced',
        'agent/sync/request-grant',
        'agent/sync/spare',
      ],
    ),
    without: ['stays with it for a day, because it is not known how fast it was used'],
  },
  {
    name: 'agent-callers',
    title: 'Agent: clock, callers and repeated requests',
    target: 80,
    mutate: agent('runtime/clock', 'access/idempotency-cache', 'access/callers/*'),
    tests: tests(
      'agent/runtime/clock',
      'agent/access/idempotency-cache',
      'agent/access/callers/*',
      'agent/access/access',
    ),
  },
  {
    name: 'agent-sessions',
    title: 'Agent: sessions',
    target: 80,
    mutate: agent('sessions/kept-session', 'sessions/session-change', 'sessions/sessions'),
    tests: tests(
      'agent/sessions/sessions',
      'agent/sessions/bookkeeping',
      'agent/sessions/essential',
      'agent/sessions/same-moment',
      'agent/sessions/sessions.property',
    ),
    without: ['ends after 30 days of silence'],
  },
  {
    name: 'agent-link',
    title: 'Agent: sync with the cloud',
    target: 80,
    mutate: [
      ...agent(
        'policy/accept-policy',
        'sync/apply-answer',
        'sync/judge-answer',
        'sync/limits',
        'sync/proofs',
        'sync/segment-extent',
        'sync/send-segment',
        'sync/top-ups',
        'sync/waiting-requests',
      ),
      'src/agent/platform/sqlite/plan-segment.ts',
    ],
    tests: tests(
      'agent/policy/accept-policy',
      'agent/sync/fetch-policy',
      'agent/sync/apply-answer',
      'agent/sync/judge-answer',
      'agent/sync/earlier-epochs',
      'agent/sync/fenced',
      'agent/sync/notifications',
      'agent/sync/proofs',
      'agent/sync/reconnect',
      'agent/sync/request-grant',
      'agent/sync/restored',
      'agent/sync/rounds',
      'agent/sync/send-segment',
      'agent/sync/spare',
      'agent/sync/top-ups',
      'agent/sync/unreadable',
      'agent/sync/waiting-requests',
      'agent/platform/sqlite/journal',
      'agent/platform/sqlite/lost-by-the-cloud',
      'agent/platform/sqlite/segment-limits',
    ),
    without: [
      'stays with it for a day, because it is not known how fast it was used',
      'come back within five minutes, never more than 40 in a second',
      'rules stay usable for as long as the cloud keeps signing that they are its newest',
      'its charges and refunds are known again, and no request waits for it',
      'ten thousand change notifications at once',
    ],
  },
  {
    name: 'cloud-pools',
    title: 'Cloud: decisions over pools',
    target: 80,
    mutate: cloud(
      'accounts/pool',
      'policy/decide-over-pools',
      'accounts/calendar',
      'policy/line-item-of',
      'usage/usage-of-request',
      'service-api/request-access',
    ),
    tests: tests(
      'cloud/accounts/pool',
      'cloud/accounts/calendar',
      'cloud/policy/decide-over-pools',
      'cloud/policy/line-item-of',
      'cloud/service-api/request-access',
      'cloud/usage/usage-of-request',
      'cloud/accounts/books.property',
      'cloud/http/service/access-request',
    ),
  },
  {
    name: 'cloud-grants',
    title: 'Cloud: grants',
    target: 80,
    mutate: cloud(
      'sync/grants/grants',
      'sync/grants/give-grant',
      'sync/grants/rebalance',
      'accounts/move-pools',
      'storage/device-records',
      'policy/offline-policy',
      'sync/grants/expire-inactive',
      'sync/grants/settle-epoch',
      'sync/save-moves',
      'sync/grants/watch-shortages',
      'sync/grants/cloud-shortages',
    ),
    tests: tests(
      'cloud/sync/sync',
      'cloud/sync/sync.property',
      'cloud/sync/grants/cloud-shortages',
      'cloud/sync/grants/expire-inactive',
      'cloud/sync/grants/give-grant',
      'cloud/sync/grants/grants',
      'cloud/sync/grants/rebalance',
      'cloud/sync/grants/refused-clients',
      'cloud/sync/grants/shortage-notes',
      'cloud/sync/grants/watch-shortages',
      'cloud/accounts/move-pools',
      'cloud/policy/offline-policy',
    ),
    without: ['never leaves the last tokens with an idle device', 'comes to rest within an hour'],
  },
  {
    name: 'cloud-merge',
    title: 'Cloud: merging of segments',
    target: 80,
    mutate: cloud(
      'sync/receive-segment',
      'sync/merge/merge-next',
      'sync/merge/keep-fork',
      'sync/merge/bill-branch',
      'sync/take-proofs',
      'sync/merge/merge-undelivered',
      'usage/usage-of-entries',
      'sync/open-segment',
      'sync/attach',
      'devices/epochs',
      'sync/merge/plausible',
      'sync/merge/unbilled',
      'sync/merge/bill-entries',
    ),
    tests: tests(
      'cloud/sync/sync',
      'cloud/sync/sync.property',
      'cloud/sync/attach',
      'cloud/sync/merge/merge-next',
      'cloud/sync/merge/plausible',
      'cloud/sync/merge/undelivered',
      'cloud/sync/recovery/restored',
      'cloud/usage/usage-of-entries',
      'cloud/accounts/periods',
    ),
  },
  {
    name: 'cloud-recovery',
    title: 'Cloud: recovery after a restore',
    target: 80,
    mutate: cloud(
      'sync/recovery/compare',
      'sync/recovery/notice-restore',
      'sync/recovery/recovery',
      'sync/recovery/sales-mark',
      'sync/recovery/sales',
    ),
    tests: tests(
      'cloud/sync/recovery/compare',
      'cloud/sync/recovery/restored',
      'cloud/sync/recovery/sales',
      'cloud/sync/recovery/sales-mark',
      'cloud/sync/recovery/restore.postgres',
    ),
    without: ['PostgreSQL'],
  },
  {
    name: 'cloud-sessions',
    title: 'Cloud: sessions',
    target: 80,
    mutate: cloud(
      'sessions/session-life',
      'sessions/command-session',
      'sessions/device-sessions',
      'devices/suspend-device',
    ),
    tests: tests(
      'cloud/http/service/sessions',
      'cloud/sessions/!(*.postgres)',
      'cloud/devices/suspend-device',
      'cloud/sync/sync',
    ),
  },
]

/** @throws Error where there is no such area */
export function areaNamed(name: string | undefined): Area {
  const area = AREAS.find((each) => each.name === name)
  if (area !== undefined) return area
  throw new Error(`There is no area ${name ?? '(none)'}. Areas: ${AREAS.map((each) => each.name).join(', ')}`)
}
