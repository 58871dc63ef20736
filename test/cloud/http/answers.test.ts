// Answers are held against what their operation declares. That is on for every twin of the tests; here it is seen to fail.
import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { type DeclaredAnswers, declaredAnswers } from '../../../src/cloud/http/declared-answers.ts'
import { openTwin, pick } from '../harness.ts'
import { bareServer } from './bare-server.ts'

const promise = declaredAnswers(
  'GET',
  {
    200: { description: 'a word', body: z.strictObject({ word: z.string() }) },
    204: { description: 'nothing' },
    206: { description: 'text', body: z.string(), mediaType: 'text/plain' },
  },
  ['NOT_FOUND'],
)

/** What a server answers, and what it found wrong, where an operation says this. */
async function said(answers: DeclaredAnswers, status: number, type: string, payload: string | undefined) {
  const wrong: string[] = []
  const { http } = bareServer((error) => wrong.push(error.message))
  http.get('/', { config: { answers } }, (_request, reply) => {
    void reply.code(status)
    if (payload === undefined) void reply.send()
    else void reply.type(type).send(payload)
  })
  const answer = await http.inject('/')
  await http.close()
  return { status: answer.statusCode, body: answer.body, wrong }
}

const JSON_TYPE = 'application/json; charset=utf-8'

describe('an answer', () => {
  it('that is declared is sent unchanged', async () => {
    for (const [status, type, payload] of [
      [200, JSON_TYPE, '{"word":"x"}'],
      [204, JSON_TYPE, undefined],
      [206, 'text/plain', 'x'],
      [404, JSON_TYPE, '{"message":"no","code":"NOT_FOUND"}'],
      [401, JSON_TYPE, '{"message":"no","code":"TOKEN_MISSING"}'],
    ] as const) {
      const answer = await said(promise, status, type, payload)
      expect(answer).toEqual({ status, body: payload ?? '', wrong: [] })
    }
  })

  it('that is not declared becomes an internal error, and is reported', async () => {
    for (const [status, type, payload] of [
      [200, JSON_TYPE, '{"word":1}'],
      [200, JSON_TYPE, '{"word":"x","more":1}'],
      [200, JSON_TYPE, undefined],
      [200, 'text/plain', '{"word":"x"}'],
      [201, JSON_TYPE, '{"word":"x"}'],
      [404, JSON_TYPE, '{"message":"no","code":"CONFLICT"}'],
      [404, JSON_TYPE, '{"message":"no"}'],
      [409, JSON_TYPE, '{"message":"no","code":"CONFLICT"}'],
    ] as const) {
      const { status: shown, body, wrong } = await said(promise, status, type, payload)
      expect([shown, pick(JSON.parse(body), 'code')], `${status} ${payload ?? ''}`).toEqual([500, 'INTERNAL'])
      expect(wrong).toHaveLength(1)
    }
  })

  it('of a twin is not looked at unless the settings ask for it', async () => {
    await using twin = await openTwin((settings) => ({
      ...settings,
      http: { ...settings.http, checkAnswers: false },
    }))
    expect((await twin.call('GET', '/provisioning/api/v1.1/instances')).status).toBe(200)
  })
})
