import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { agent, denyingAgent, measureSizes } from '../../bench/contenders/agent.ts'
import type { Contender } from '../../bench/contenders/contender.ts'
import { floor } from '../../bench/contenders/floor.ts'
import { withPlace } from '../../bench/contenders/place.ts'
import { FLOOR_STACKS } from '../../bench/floor/options.ts'
import { type Plan, runRounds } from '../../bench/rounds.ts'

const sizes = { entryBytes: 900, answerBytes: 400 }

let directory = ''
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tallygate-bench-test-'))
})
afterEach(() => rmSync(directory, { recursive: true, force: true }))

const plan = (contenders: readonly Contender[]): Plan => ({
  contenders,
  connections: [1, 3],
  rounds: 1,
  durationMs: 30,
  warmupMs: 1,
  restMs: 1,
  directory,
  repeatsBodies: false,
})

test.each(FLOOR_STACKS)('everything that the floor on %s has acknowledged is in its database', async (stack) => {
  const { measurements, accounts } = await runRounds(plan([floor(stack, sizes)]), () => undefined)
  expect(accounts).toMatchObject([{ contender: `floor (${stack})`, round: 1 }])
  expect(accounts[0]?.acknowledged).toBeGreaterThan(0)
  expect(accounts[0]?.recorded).toBe(accounts[0]?.acknowledged)
  expect(measurements.map(({ connections }) => connections)).toEqual([1, 3])
  expect(readdirSync(directory)).toEqual([])
})

test('everything that the agent has acknowledged is in its ledger, and the sizes are those of its entries', async () => {
  const { accounts } = await runRounds(plan([agent]), () => undefined)
  expect(accounts[0]?.memory.atRest).toBeGreaterThan(2 ** 20)
  expect(accounts[0]?.memory.underLoad).toBeGreaterThan(2 ** 20)
  expect(accounts[0]?.acknowledged).toBeGreaterThan(0)
  expect(accounts[0]?.recorded).toBe(accounts[0]?.acknowledged)
  const { entryBytes, answerBytes } = await withPlace(directory, measureSizes)
  expect(entryBytes).toBeGreaterThan(300)
  expect(answerBytes).toBeGreaterThan(200)
})

test('the row of denials contains only denials, and all of them are in the ledger', async () => {
  const { accounts } = await runRounds(plan([denyingAgent]), () => undefined)
  expect(accounts[0]?.acknowledged).toBeGreaterThan(0)
  expect(accounts[0]?.recorded).toBe(accounts[0]?.acknowledged)
})

test('a server that records nothing is not audited', async () => {
  const honest = floor('net', sizes)
  const silent: Contender = {
    name: 'silent',
    async start(place) {
      const running = await honest.start(place)
      return {
        ...running,
        async killAndCount() {
          await running.killAndCount()
          return null
        },
      }
    },
  }
  const { accounts } = await runRounds({ ...plan([silent]), repeatsBodies: true }, () => undefined)
  expect(accounts).toMatchObject([{ recorded: null }])
})

test('a server that has recorded less than it acknowledged fails the run', async () => {
  const honest = floor('net', sizes)
  const forgetful: Contender = {
    name: 'forgetful',
    async start(place) {
      const running = await honest.start(place)
      return { ...running, killAndCount: async () => Number(await running.killAndCount()) - 1 }
    },
  }
  await expect(runRounds(plan([forgetful]), () => undefined)).rejects.toThrow(/forgetful acknowledged \d+ debits/)
})

test('an answer that is not a grant fails the run', async () => {
  const honest = floor('net', sizes)
  const refusing: Contender = {
    name: 'refusing',
    async start(place) {
      const running = await honest.start(place)
      if (running.target.protocol !== 'http') throw new Error('the floor speaks HTTP')
      return { ...running, target: { ...running.target, grantMark: 'nothing that the floor answers' } }
    },
  }
  await expect(runRounds(plan([refusing]), () => undefined)).rejects.toThrow(/not a grant/)
})
