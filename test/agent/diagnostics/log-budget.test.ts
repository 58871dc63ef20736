import { pino } from 'pino'
import { describe, expect, it } from 'vitest'
import { LogBudget } from '../../../src/agent/diagnostics/log-budget.ts'
import { FakeTime } from '../sync/fake-time.ts'

const DAY = 86_400_000
const PER_DAY = 960 * 1024

function logger(perDay = PER_DAY) {
  const time = new FakeTime()
  const lines: string[] = []
  const set = { perDay }
  const budget = new LogBudget({
    write: (line) => void lines.push(line),
    sinceBoot: () => time.sinceBoot(),
    timers: time,
    perDay: () => set.perDay,
  })
  const log = pino({ level: 'debug', base: null }, { write: (line) => budget.take(line) })
  const bytes = () => lines.reduce((sum, line) => sum + Buffer.byteLength(line), 0)
  const told = () => lines.map((line) => JSON.parse(line) as Record<string, unknown>)
  return { time, log, budget, lines, set, bytes, told }
}

describe('the log of a device', () => {
  it('has the first five of lines alike at once, and the others as a count every ten minutes', () => {
    const { time, log, told } = logger()
    for (let n = 1; n <= 8; n++) log.warn({ subject: 'cloud', code: 'CLOUD_UNREACHABLE', n }, 'no route')
    log.warn({ subject: 'sync', code: 'CLOUD_UNREACHABLE' }, 'no route')
    expect(told().map(({ n }) => n)).toEqual([1, 2, 3, 4, 5, undefined])
    time.advance(600_000)
    expect(told()[6]).toMatchObject({ subject: 'cloud', n: 8, msg: 'no route', repeated: 3 })
    log.warn({ subject: 'cloud', code: 'CLOUD_UNREACHABLE', n: 9 }, 'no route')
    expect(told()).toHaveLength(7)
    time.advance(600_000)
    expect(told()[7]).toMatchObject({ n: 9, repeated: 1 })
    time.advance(1_200_000)
    log.warn({ subject: 'cloud', code: 'CLOUD_UNREACHABLE', n: 10 }, 'no route')
    expect(told()[8]).toMatchObject({ n: 10 })
    expect(told()[8]).not.toHaveProperty('repeated')
  })

  it('stays below its daily limit, whatever is logged', () => {
    const { time, log, bytes, lines } = logger()
    const at: number[] = []
    for (let minute = 0; minute < 3 * 1_440; minute++) {
      for (let n = 0; n < 15; n++) log.error({ minute, n, filler: 'x'.repeat(400) }, `fault ${minute}-${n}`)
      time.advance(60_000)
      at.push(bytes())
    }
    const worst = Math.max(...at.map((total, minute) => total - (at[minute - 1_440] ?? 0)))
    expect(worst).toBeLessThanOrEqual(PER_DAY)
    // What it may have, it has.
    expect(bytes()).toBeGreaterThan(2.2 * PER_DAY)
    expect(lines.some((line) => line.includes('log lines were left out'))).toBe(true)
  })

  it('reserves half of the budget for warnings', () => {
    const { log, told } = logger()
    for (let n = 0; n < 5_000; n++) log.info({ n, filler: 'x'.repeat(200) }, `something ${n}`)
    log.warn({}, 'look at this')
    expect(told().find(({ msg }) => msg === 'look at this')).toBeDefined()
    const leftOut = told().find(({ msg }) => String(msg).startsWith('log lines were left out'))
    expect(Number(leftOut?.['lines'])).toBe(5_000 - told().filter(({ level }) => level === 30).length)
  })

  it('logs its counts at a stop', () => {
    const { log, budget, told } = logger()
    for (let n = 0; n < 7; n++) log.warn({}, 'again')
    budget.flush()
    expect(told().map(({ repeated }) => repeated)).toEqual([...Array<undefined>(5).fill(undefined), 2])
  })

  it('has no limit if none is set, also after a change between two lines', () => {
    const { log, set, told } = logger()
    set.perDay = 0
    for (let n = 0; n < 100; n++) log.debug({}, 'detail')
    expect(told()).toHaveLength(100)
    set.perDay = PER_DAY
    for (let n = 0; n < 100; n++) log.debug({}, 'detail')
    expect(told()).toHaveLength(105)
  })

  it('passes a line that is no JSON', () => {
    const { budget, lines } = logger()
    budget.take('Segmentation fault\n')
    expect(lines).toEqual(['Segmentation fault\n'])
  })

  it('remembers no more kinds of lines than it may, and forgets them', () => {
    const { time, log, bytes } = logger()
    for (let hour = 0; hour < 24 * 4; hour++) {
      for (let n = 0; n < 700; n++) log.info({}, `kind ${hour}-${n}`)
      time.advance(3_600_000)
    }
    expect(bytes()).toBeLessThanOrEqual(5 * PER_DAY)
    time.advance(DAY)
    expect(time.untilNext).toBe(Infinity)
  })
})
