import { expect, it } from 'vitest'
import { savedActions } from '../../src/cli/nouns/actions.ts'

it('keeps the id and so the use of an action that another command has created meanwhile', async () => {
  const path = '/api/v1.1/instances/i/line-items/l/actions'
  const rows: Readonly<Record<string, readonly Record<string, unknown>[]>> = {
    '/api/v1.1/instances/i/conditions': [{ id: 'c', name: 'design' }],
    [path]: [{ id: 'a', action: 'ALLOW', conditionId: 'c', allocation: 50, used: 7 }],
  }
  const body = { lineItemId: 'l', actions: [{ action: 'ALLOW', condition: 'design', allocation: 50 }] }
  const service = { rows: async (of: string) => rows[of] ?? [] }
  expect(await savedActions(path, { service, scope: { instanceId: 'i' }, body })).toEqual([
    { id: 'a', action: 'ALLOW', conditionId: 'c', allocation: 50 },
  ])
})
