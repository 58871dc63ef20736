// The next epoch of a device, which delivers what an earlier one could not.
import type { SegmentWire, SyncAnswer } from '../../../src/protocol/edge/sync.ts'
import type { Asked, TestDevice } from './test-device.ts'

export interface Successor {
  readonly next: TestDevice
  deliver(undeliveredRange: SegmentWire['undeliveredRange'], topUpRequests?: readonly Asked[]): Promise<SyncAnswer>
}

export async function successorOf(old: TestDevice): Promise<Successor> {
  const next = old.copy()
  await next.attach()
  const deliver: Successor['deliver'] = async (undeliveredRange, topUpRequests = []) => {
    const sealed = await next.sealAs({ ...next.payload(topUpRequests), undeliveredRange })
    Object.assign(next.state, { unacknowledged: sealed, seq: sealed.seq, hash: sealed.hash })
    const taken = await next.twin.sync(next.id, sealed.document)
    if (!taken.accepted) throw new Error(taken.problem)
    return next.accept(taken.answer)
  }
  return { next, deliver }
}
