import type { AgentStatusWire } from '../../src/protocol/local/status.ts'

export const instanceId = '64d2028c-ae87-4069-a624-66089d957ef9'

/** How an agent is that has nothing to complain about, except for the changes. */
export function agentStatus(changes: Partial<AgentStatusWire> = {}): AgentStatusWire {
  return {
    version: '0.1.0',
    engine: 1,
    startedAt: 1_799_999_000_000,
    deviceId: '0c1d8a1e-0000-4000-8000-000000000000',
    name: 'press-7',
    instanceIds: [instanceId],
    epoch: 1,
    fenced: false,
    key: { id: '-3gXeJ8G0ZLmVPG6B3oMVl1XYBkkTAqpGmbX3Q8dfPo', since: 1_799_000_000_000, next: null },
    suspension: null,
    connected: true,
    lastContactAt: 1_799_999_990_000,
    lastSyncAt: 1_799_999_990_000,
    retryInMs: null,
    durability: 'durable',
    lastEntry: 12,
    backlog: 3,
    unacknowledgedSeq: null,
    policies: [{ instanceId, name: 'Workshop', applied: 7, newest: 8, engine: 1, remainingMs: 604_800_000 }],
    sessions: [],
    push: 'CONNECTED',
    clock: { now: 1_800_000_000_000, earliest: 1_799_999_999_000, latest: null },
    grant: { term: 4, expiresAt: 1_800_086_400_000, remainingMs: 86_400_000 },
    accounts: [
      {
        account: `line/${instanceId}/LW-ANNUAL/0`,
        actionName: null,
        granted: '150000000',
        used: '30500000',
        burned: '0',
        refunded: '500000',
        returned: '0',
        exhausted: true,
        unlimited: false,
        overdraft: '20000000',
      },
    ],
    storage: {
      written: 52_428_800,
      measuredMs: 14_400_000,
      perDecision: 9_216,
      perDay: 314_572_800,
      budgetPerDay: null,
    },
    backup: null,
    conditions: [],
    ...changes,
  }
}
