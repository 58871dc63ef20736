// Decisions made again from what a device keeps of them: whatever was asked, and by whatever rules, the same comes out.
import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { accessEntryText, decisionInputsText, parseDecisionInputs } from '../../../src/agent/access/entry-text.ts'
import { explain } from '../../../src/agent/diagnostics/explain.ts'
import { BalancesSeen } from '../../../src/agent/access/local-decisions.ts'
import { Refusals } from '../../../src/agent/diagnostics/refusals.ts'
import { ENGINE } from '../../../src/core/engine.ts'
import { compilePolicy } from '../../../src/core/rules/compile.ts'
import { decide } from '../../../src/core/rules/decide.ts'
import type { AvailableBalance } from '../../../src/core/rules/decision.ts'
import type { Condition, Policy } from '../../../src/core/rules/policy.ts'
import { policyToWire } from '../../../src/protocol/edge/policy-document.ts'
import type { KeptDecision } from '../../../src/protocol/local/decision.ts'
import { accessResponse } from '../../../src/protocol/service/access-request.ts'
import { sha256, signDocument } from '../../../src/protocol/signing.ts'
import { type Scenario, availableOf, scenario } from '../../core/rules/properties.arbitraries.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { type NewSigner, newSigner } from '../../support/new-signer.ts'

const CORRELATION_ID = '5c8ec4fd-f17f-4657-bf09-74a97ddc9f8b'

/** The protocol's ids are UUIDs. */
function uuidOf(text: string): string {
  const hex = sha256(text)
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`
}

function onTheWire(policy: Policy): Policy {
  const filled = (condition: Condition): Condition => {
    if (condition.operator === 'NOT') return { ...condition, condition: filled(condition.condition) }
    if (condition.operator === 'IN') return condition
    const conditions = condition.conditions.map(filled)
    return {
      ...condition,
      conditions: conditions.length > 0 ? conditions : [{ operator: 'IN', property: 'p', values: [] }],
    }
  }
  return {
    ...policy,
    instanceId: INSTANCE,
    conditions: policy.conditions.map(({ id, name, ...condition }) => ({ id: uuidOf(id), name, ...filled(condition) })),
    lineItems: policy.lineItems.map((item) => ({
      ...item,
      periods: item.periods.length > 0 ? item.periods : [{ index: 0, from: null, until: null }],
      actions: item.actions.map((action) => ({
        ...action,
        id: uuidOf(action.id),
        conditionId: action.conditionId === null ? null : uuidOf(action.conditionId),
      })),
    })),
  }
}

interface Made {
  readonly kept: Extract<KeptDecision, { kind: 'entry' }>
  readonly answer: string
}

/** One decision as the agent makes, records and answers it. */
async function made(key: NewSigner, { policy: raw, request, clock, balances, mode }: Scenario): Promise<Made> {
  const policy = onTheWire(raw)
  const terms = { instanceName: 'Workshop', issuedAt: 1, usableForMs: 1, grantHorizonMs: 1, trustedKeys: [key.jwk] }
  const rules = await signDocument('policy', JSON.stringify(policyToWire(policy, terms)), key.signer)
  const held = balances.map((balance): AvailableBalance => ({
    ...balance,
    left: typeof balance.left === 'bigint' && balance.left < 0n ? 0n : balance.left,
  }))
  const seen = new BalancesSeen(availableOf(held))
  const decision = decide(compilePolicy(policy).at(clock), request, seen.of, mode)
  const entry = {
    ...{
      n: 7,
      reading: clock,
      instanceId: INSTANCE,
      policyRevision: 1,
      engine: ENGINE.version,
      correlationId: CORRELATION_ID,
    },
    ...{ request, metaData: request.items.map((_, index) => (index === 0 ? { job: [1, 'x'] } : undefined)), decision },
    ...(mode === 'ALL_OR_NOTHING' ? { session: { id: uuidOf('s'), event: 'GRANTED' as const } } : {}),
  }
  return {
    kept: {
      kind: 'entry',
      body: accessEntryText(entry),
      inputs: decisionInputsText('v1.1', seen.balances(), request.requester.dictionary),
      rules,
      trustedKeys: [JSON.stringify(key.jwk)],
    },
    answer: JSON.stringify(accessResponse('v1.1', CORRELATION_ID, request, decision)),
  }
}

describe('a decision that is explained', () => {
  it('is reproduced to the byte with its answer, for any request', { timeout: 120_000 }, async () => {
    const key = await newSigner()
    await fc.assert(
      fc.asyncProperty(scenario(4), async (each) => {
        const { kept, answer } = await made(key, each)
        const explanation = await explain(kept)
        expect(explanation.replay).toEqual({ result: 'same', says: expect.any(String) as string })
        expect(explanation.answer).toBe(answer)
        // A check that failed is named by the outcome, and nothing behind it was come to.
        for (const { outcome, checkOrder } of explanation.items) {
          const failed = checkOrder.filter(({ passed }) => passed === false)
          if (outcome === 'GRANTED' || outcome === 'NOT_CHARGED') expect(failed).toEqual([])
          else expect(failed.map(({ code }) => code)).toEqual([outcome])
        }
      }),
      { numRuns: 400 },
    )
  })

  it('is reported as different when inputs, rules or the entry were altered', async () => {
    const key = await newSigner()
    const candidates = fc
      .sample(scenario(1), { numRuns: 300, seed: 7 })
      .map(async (each) => ({ each, ...(await made(key, each)) }))
    const { each: sample, kept } = (await Promise.all(candidates)).find(
      ({ kept: { body, inputs } }) => body.includes('"postings":[{') && /^1;\d+P[;,]/.test(inputs ?? ''),
    )!
    const result = async (changes: Partial<typeof kept>) => (await explain({ ...kept, ...changes })).replay.result
    expect(await result({})).toBe('same')
    expect(await result({ inputs: kept.inputs!.replaceAll(/(\d+|\*)([PGXDR])/g, '0$2') })).toBe('different')
    expect(await result({ inputs: kept.inputs!.replace(';', ';5P,') })).toBe('different')
    expect(await result({ body: kept.body.replace(/"charged":"\d+"/, '"charged":"1234567"') })).toBe('different')
    const empty = policyToWire(onTheWire({ ...sample.policy, lineItems: [] }), {
      ...{ instanceName: 'Workshop', issuedAt: 1, usableForMs: 1, grantHorizonMs: 1, trustedKeys: [key.jwk] },
    })
    expect(await result({ rules: await signDocument('policy', JSON.stringify(empty), key.signer) })).toBe('different')
  })

  it('names an expired grant instead of a balance of 0', async () => {
    const key = await newSigner()
    const candidates = fc.sample(scenario(1), { numRuns: 300, seed: 7 }).map((each) => {
      const balances = each.balances.map(() => ({ left: 0n, shortage: 'GRANT_EXPIRED' as const }))
      return made(key, { ...each, balances })
    })
    const explained = await Promise.all((await Promise.all(candidates)).map(({ kept }) => explain(kept)))
    const { items, accounts } = explained.find(({ items }) => items.some(({ outcome }) => outcome === 'GRANT_EXPIRED'))!
    const [check] = items.flatMap(({ checkOrder }) => checkOrder.filter(({ code }) => code === 'GRANT_EXPIRED'))
    expect(check?.evidence[0]).toMatch(/: needs [\d.]+, the grant of the device has expired$/)
    expect(accounts).toContainEqual(expect.objectContaining({ left: '0', expired: true }))
  })

  it('is shown as recorded when its inputs or rules were removed, with the removed ones named', async () => {
    const key = await newSigner()
    const [sample] = fc.sample(scenario(1), { numRuns: 1, seed: 1 })
    const { kept } = await made(key, sample!)
    const says = async (changes: Partial<typeof kept>) => (await explain({ ...kept, ...changes })).replay
    expect(await says({ inputs: null })).toMatchObject({
      result: 'impossible',
      says: expect.stringContaining('inputs') as string,
    })
    expect(await says({ rules: null })).toMatchObject({
      result: 'impossible',
      says: expect.stringContaining('rules') as string,
    })
    expect(await says({ rules: 'a.b.c' })).toMatchObject({ result: 'impossible' })
    const other = await newSigner()
    expect(await says({ trustedKeys: [JSON.stringify(other.jwk)] })).toMatchObject({
      result: 'same',
      says: expect.stringContaining('no longer one of the pinned keys') as string,
    })
    await expect(explain({ ...kept, body: '{' })).rejects.toMatchObject({ code: 'DATABASE_CORRUPT' })
  })

  it('of another engine version is shown as recorded and not compared, even if it could not be reproduced', async () => {
    const key = await newSigner()
    const [sample] = fc.sample(scenario(1), { numRuns: 1, seed: 1 })
    const { kept } = await made(key, sample!)
    const changed = { ...kept, body: kept.body.replace(`"engine":${ENGINE.version}`, '"engine":3'), inputs: '1;0P;' }
    for (const each of [changed, { ...changed, inputs: null, rules: null }]) {
      expect(await explain(each, 4)).toMatchObject({
        engine: 3,
        answer: null,
        accounts: [],
        replay: {
          result: 'other-engine',
          says: 'Decided by engine 3, this is engine 4: the decision is not compared.',
        },
      })
    }
    expect((await explain(kept, 4)).items.map(({ outcome }) => outcome)).toEqual(
      (await explain(kept)).items.map(({ outcome }) => outcome),
    )
  })

  it('takes a few bytes beside its entry', async () => {
    const balance: AvailableBalance = { left: 98_500_000n, shortage: 'GRANT' }
    const seen = new BalancesSeen(() => balance)
    seen.of('line/a')
    seen.of('action/a')
    seen.of('line/a')
    expect(decisionInputsText('v1.1', seen.balances(), {})).toBe('1;98500000G,98500000G;')
    expect(parseDecisionInputs('1;98500000G,*P,0X+5;{"a":";"}')).toEqual({
      apiVersion: 'v1.1',
      balances: [
        balance,
        { left: 'UNLIMITED', shortage: 'POOL' },
        { left: 0n, shortage: 'GRANT_EXPIRED', overspend: 5n },
      ],
      dictionary: { a: ';' },
    })
    for (const text of ['', '1', '2;;', '1;x;', '1;5;', '1;;[]', '1;;{'])
      expect(parseDecisionInputs(text)).toBeUndefined()
  })
})

describe('a refusal without an entry', () => {
  const refusals = (most: number): Refusals => {
    let ids = 0
    return new Refusals({ now: () => 5, newCorrelationId: () => uuidOf(String((ids += 1))), most })
  }

  it('is explained by the check that failed, and the last of them are remembered', async () => {
    const kept = refusals(2)
    const add = (code: 'POLICY_STALE' | 'OVERLOADED') => kept.add({ code, message: 'too long ago' }, 'POST', 'uid:0')
    const first = add('POLICY_STALE')
    const refusal = kept.get(first)!
    const { kind, checkOrder, replay } = await explain({ kind: 'refusal', refusal })
    expect({ kind, replay: replay.result }).toEqual({ kind: 'refusal', replay: 'none' })
    expect(checkOrder.filter(({ passed }) => passed === false)).toEqual([
      expect.objectContaining({ code: 'POLICY_STALE', evidence: ['too long ago', 'POST', 'called by uid:0'] }),
    ])
    expect(checkOrder.findLast(({ passed }) => passed === true)?.code).toBe('POLICY_MISSING')
    const second = add('OVERLOADED')
    const third = add('OVERLOADED')
    expect(kept.get(first)).toBeUndefined()
    expect([second, third].map((id) => kept.get(id)?.code)).toEqual(['OVERLOADED', 'OVERLOADED'])
    expect(refusals(0).get(add('OVERLOADED'))).toBeUndefined()
  })
})
