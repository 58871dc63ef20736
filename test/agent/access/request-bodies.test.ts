import { describe, expect, it } from 'vitest'
import { RequestBodies } from '../../../src/agent/access/access.ts'
import { accessRequestBody, requestOf } from '../../../src/protocol/service/access-request.ts'

const plain = { requester: { type: 'user', value: 'ada' }, requestedItems: [{ item: 'Print', count: 1 }] }
const withVariables = { ...plain, requestedItems: [{ item: 'Print', count: 1, variables: { n: 2 } }] }

describe('the bodies of access requests', () => {
  it('are judged once for each object, and read as they are without a memory', () => {
    const bodies = new RequestBodies()
    const first = bodies.read('v1.1', withVariables)
    expect(bodies.read('v1.1', withVariables)).toBe(first)
    expect(bodies.read('v1.1', { ...withVariables })).not.toBe(first)
    const body = accessRequestBody['v1.1'].parse(withVariables)
    expect(first).toEqual({ request: requestOf(body), metaData: [undefined] })
  })

  it('are judged by each version of the interface for itself, and refused as often as they come', () => {
    const bodies = new RequestBodies()
    for (let times = 0; times < 2; times += 1) {
      expect(bodies.read('v1.1', withVariables).request.items).toHaveLength(1)
      expect(() => bodies.read('v1.0', withVariables)).toThrow(expect.objectContaining({ code: 'BAD_REQUEST' }))
      for (const nothing of [null, undefined, 1, 'x', [], {}]) {
        expect(() => bodies.read('v1.0', nothing)).toThrow(expect.objectContaining({ code: 'BAD_REQUEST' }))
      }
    }
  })
})
