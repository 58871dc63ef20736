import { expect, it } from 'vitest'
import { reportOf } from '../../../src/agent/diagnostics/report.ts'
import { ERRORS } from '../../../src/protocol/errors.ts'
import { agentStatus } from '../../cli/agent-status.ts'
import { reportWith } from '../platform/status-http/report-with.ts'

it('repeats no remedy that the message of a refusal contains', async () => {
  const { machine, use } = reportWith()
  const refusal = { correlationId: 'c', at: 1, request: 'r', caller: null, message: 'count up' }
  const { refusals } = await reportOf({
    status: agentStatus,
    journal: { recent: async () => [] },
    machine: async () => machine,
    refusals: { latest: () => (['CONFLICT', 'STOPPING'] as const).map((code) => ({ ...refusal, code })) },
    use: { reading: () => use },
  })
  expect(refusals.map(({ remedy }) => remedy)).toEqual(['', ERRORS.STOPPING.remedy])
})
