import { describe, expect, it } from 'vitest'
import {
  applicationSession,
  ownerOf,
  RecentOfEach,
  IdempotencyCache,
  recordOf,
} from '../../../src/agent/access/idempotency-cache.ts'

const answer = (session: string, n: number, requestHash = `h${n}`) => ({
  session,
  n,
  requestHash,
  answer: `answer ${n}`,
  policyRevision: 1,
})
const place = (session: string, n: number, requestHash = `h${n}`) => ({ session, n, requestHash })

describe('the last answers', () => {
  it('give a repeated request its first response, also after a restart', () => {
    const answers = new IdempotencyCache([answer('s', 3)], 10)
    expect(answers.begin(place('s', 3))).toEqual({ kind: 'REPEAT', answer: answer('s', 3) })
    expect(answers.begin(place('s', 4))).toMatchObject({ kind: 'NEW' })
  })

  it('are recorded with their status if it is not 200, and only for a request that can be repeated', () => {
    const begun = new IdempotencyCache([], 10).begin(place('s', 1))
    if (begun.kind !== 'NEW') throw new Error('it is new')
    const answered = { status: 200, body: 'answer 1', policyRevision: 1 }
    expect(recordOf(begun.claim, answered)).toEqual(answer('s', 1))
    expect(recordOf(begun.claim, { ...answered, status: 403 })).toEqual({ ...answer('s', 1), status: 403 })
    expect(recordOf(null, answered)).toBeNull()
  })

  it('make a repetition wait for the first one, and share its result', async () => {
    const answers = new IdempotencyCache([], 10)
    for (const end of ['settle', 'fail'] as const) {
      const begun = answers.begin(place('s', 1))
      if (begun.kind !== 'NEW') throw new Error('it is new')
      const again = answers.begin(place('s', 1))
      if (again.kind !== 'REPEAT') throw new Error('it is a repetition')
      if (end === 'settle') {
        answers.settle(answer('s', 1))
        expect(await again.answer).toEqual(answer('s', 1))
        break
      }
      answers.fail(begun.claim, new Error('not recorded'))
      await expect(again.answer).rejects.toThrow('not recorded')
    }
  })

  it('permit the same number again if there was no response', () => {
    const answers = new IdempotencyCache([], 10)
    const begun = answers.begin(place('s', 1))
    if (begun.kind !== 'NEW') throw new Error('it is new')
    answers.fail(begun.claim, new Error('not recorded'))
    expect(answers.begin(place('s', 1, 'another'))).toMatchObject({ kind: 'NEW' })
  })

  it('refuse another request under the same number, an older number, and a second one at a time', () => {
    const answers = new IdempotencyCache([answer('s', 3)], 10)
    expect(() => answers.begin(place('s', 3, 'another'))).toThrow(
      expect.objectContaining({ code: 'IDEMPOTENCY_CONFLICT' }),
    )
    expect(() => answers.begin(place('s', 2))).toThrow(expect.objectContaining({ code: 'CONFLICT' }))
    answers.begin(place('s', 4))
    expect(() => answers.begin(place('s', 4, 'another'))).toThrow(
      expect.objectContaining({ code: 'IDEMPOTENCY_CONFLICT' }),
    )
    expect(() => answers.begin(place('s', 5))).toThrow(expect.objectContaining({ code: 'CONFLICT' }))
    expect(answers.begin(place('t', 1))).toMatchObject({ kind: 'NEW' })
  })

  it('are kept up to the limit of sessions, and the least recently used one is evicted first', () => {
    const answers = new IdempotencyCache([answer('a', 1), answer('b', 1)], 2)
    answers.settle(answer('a', 2))
    answers.settle(answer('c', 1))
    expect(answers.begin(place('a', 2))).toMatchObject({ kind: 'REPEAT' })
    expect(answers.begin(place('c', 1))).toMatchObject({ kind: 'REPEAT' })
    expect(answers.begin(place('b', 1))).toMatchObject({ kind: 'NEW' })
  })

  it.each(['settled', 'read from the disk'])('of one caller never make way for those of another one, %s', (how) => {
    const quiet = [answer('uid:1000 till', 1), answer('till', 1)]
    const loud = Array.from({ length: 50 }, (_, index) => answer(`uid:1001 name-${index}`, 1))
    const answers = new IdempotencyCache(how === 'settled' ? quiet : [...quiet, ...loud], 2)
    if (how === 'settled') for (const one of loud) answers.settle(one)
    expect(answers.begin(place('uid:1000 till', 1))).toEqual({ kind: 'REPEAT', answer: quiet[0] })
    expect(answers.begin(place('till', 1))).toEqual({ kind: 'REPEAT', answer: quiet[1] })
    expect(answers.begin(place('uid:1001 name-48', 1))).toMatchObject({ kind: 'REPEAT' })
    expect(answers.begin(place('uid:1001 name-47', 1))).toMatchObject({ kind: 'NEW' })
  })
})

describe('an application session', () => {
  it('is named by its caller and by itself, or by itself where callers are not distinguished', () => {
    expect(applicationSession('uid:1000', 'till')).toBe('uid:1000 till')
    expect(applicationSession(null, 'till')).toBe('till')
    expect([ownerOf('uid:1000 till'), ownerOf('till'), ownerOf('')]).toEqual(['uid:1000', '', ''])
  })

  it('is counted while it is among the recent ones of its caller', () => {
    const recent = new RecentOfEach<number>(2)
    const use = (session: string, value: number): number | undefined => {
      const gone = recent.freeSpace(session)
      recent.set(session, value)
      return gone
    }
    expect(['a x', 'a y', 'b x', 'a x', 'a z', 'b y'].map(use)).toEqual([
      undefined,
      undefined,
      undefined,
      undefined,
      1,
      undefined,
    ])
    expect([recent.size, recent.get('a x'), recent.get('a y'), recent.get('b x')]).toEqual([4, 3, undefined, 2])
  })
})
