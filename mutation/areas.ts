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

const agent = (...names: readonly string[]): readonly string[] => names.map((name) => `src/agent/app/${name}.ts`)
const cloud = (...names: readonly string[]): readonly string[] => names.map((name) => `src/cloud/app/${name}.ts`)
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
      ...['access', 'local-decisions', 'require-rules', 'policy-board', 'ledger', 'balances', 'commits', 'blocks'],
      ...['recover-blocks', 'burn-rate', 'accounts-in-sight', 'counter-bytes', 'entry-text'],
    ),
    tests: tests(
      ...['access', 'ledger', 'reserved', 'burn-rate', 'policy-board', 'entry-text', 'sessions/essential'].map(
        (name) => `agent/${name}`,
      ),
    ),
  },
  {
    name: 'agent-callers',
    title: 'Agent: clock, callers and repeated requests',
    target: 80,
    mutate: agent('clock', 'last-answers', 'recent-of-each', 'application-session', 'callers/*'),
    tests: tests('agent/clock', 'agent/last-answers', 'agent/callers/*', 'agent/access'),
  },
  {
    name: 'agent-sessions',
    title: 'Agent: sessions',
    target: 80,
    mutate: agent('sessions/*'),
    tests: tests('agent/sessions/{sessions,bookkeeping,essential,same-moment,sessions.property}'),
    without: ['nobody hears of it again for 30 days'],
  },
  {
    name: 'agent-link',
    title: 'Agent: what is sent to the cloud, and what is taken from it',
    target: 80,
    mutate: [
      ...agent('link/{accept-policy,judge-answer,limits,proofs,segment-extent,send-segment,top-ups,waiting-requests}'),
      'src/agent/adapters/sqlite/plan-segment.ts',
    ],
    tests: tests(
      'agent/link/{judge-answer,proofs,request-grant,restored,send-segment,spare,fenced,unreadable}',
      'agent/sqlite/segment-limits',
    ),
    without: ['stays with it for a day, because it is not known how fast it was used'],
  },
  {
    name: 'cloud-pools',
    title: 'Cloud: decisions over pools',
    target: 80,
    mutate: cloud('pool', 'decide-over-pools', 'calendar', 'line-item-terms', 'usage-of-request', 'request-access'),
    tests: tests('cloud/app/{pool,calendar,request-access,books.property}', 'cloud/api/access-request'),
  },
  {
    name: 'cloud-grants',
    title: 'Cloud: grants',
    target: 80,
    mutate: cloud(
      'edge/{grants,give-grant,share-scarce,move,records,offline-policy,settle-silent,write-settlement,watch-shortages}',
      'cloud-shortages',
    ),
    tests: tests('cloud/edge/{sync,sync.property,offline-policy,cloud-shortages}'),
    without: ['never leaves the last tokens with an idle device', 'comes to rest within an hour'],
  },
  {
    name: 'cloud-merge',
    title: 'Cloud: what devices deliver',
    target: 80,
    mutate: cloud(
      'edge/{merge-next,bill-branch,take-proofs,take-remnant,usage-of-entries,open-segment,attach}',
      'edge/{plausible,unbilled,write-merge}',
    ),
    tests: tests('cloud/edge/{sync,sync.property,usage-of-entries,periods}'),
  },
  {
    name: 'cloud-recovery',
    title: 'Cloud: what was sold before a restore',
    target: 80,
    mutate: cloud('recovery/{compare,notice-restore,recovery,sales-mark,sales}'),
    tests: tests('cloud/recovery/{sales-mark,restore}'),
    without: ['over PostgreSQL', 'a database that is not empty'],
  },
  {
    name: 'cloud-sessions',
    title: 'Cloud: sessions',
    target: 80,
    mutate: cloud('session-life', 'hold-session', 'edge/{device-sessions,hold-device}'),
    tests: tests('cloud/api/sessions', 'cloud/edge/{device-sessions,hold-device}'),
  },
]

/** @throws Error where there is no such area */
export function areaNamed(name: string | undefined): Area {
  const area = AREAS.find((each) => each.name === name)
  if (area !== undefined) return area
  throw new Error(`There is no area ${name ?? '(none)'}. Areas: ${AREAS.map((each) => each.name).join(', ')}`)
}
