import { describe, expect, it } from 'vitest'
import { DAY, HOUR, START, openTwin, pick, text } from '../../harness.ts'

const path = (version = 'v1.1'): string => `/provisioning/api/${version}/configuration`

describe('configuration', () => {
  it('shows the values that the version knows, with their defaults', async () => {
    await using twin = await openTwin()
    expect((await twin.call('GET', path('v1.0'))).body).toEqual([{ name: 'timezone.tolerant', value: 'false' }])
    expect((await twin.call('GET', path())).body).toEqual([
      { name: 'timezone.tolerant', value: 'false' },
      { name: 'session.charge.period', value: 'PT1H' },
    ])
  })

  it('is changed by one or several values, and shows the time and the key of each change', async () => {
    await using twin = await openTwin()
    const updatedBy = text((await twin.call('GET', '/api/v1.1/public-keys')).body, 'keys', 0, 'id')
    const one = await twin.call('PATCH', path('v1.0'), { body: { name: 'timezone.tolerant', value: 'true' } })
    expect([one.status, one.body]).toEqual([
      200,
      [{ name: 'timezone.tolerant', value: 'true', modified: START, updatedBy }],
    ])
    twin.now += HOUR
    const several = await twin.call('PATCH', path(), {
      body: [
        { name: 'session.charge.period', value: 'PT1H30M' },
        { name: 'timezone.tolerant', value: true },
      ],
    })
    expect(several.body).toEqual([
      { name: 'timezone.tolerant', value: 'true', modified: START, updatedBy },
      { name: 'session.charge.period', value: 'PT1H30M', modified: START + HOUR, updatedBy },
    ])
    await twin.restart()
    expect((await twin.call('GET', path())).body).toEqual(several.body)
  })

  it('takes the documented values only', async () => {
    await using twin = await openTwin()
    const patch = async (body: unknown, version = 'v1.1') => (await twin.call('PATCH', path(version), { body })).status
    const period = (value: unknown) => patch({ name: 'session.charge.period', value })
    for (const good of ['PT10M', 'PT24H', 'PT90M', 'PT1H30M', 'PT1440M', 'PT0H10M'])
      expect(await period(good)).toBe(200)
    for (const bad of [
      'PT9M',
      'PT24H1M',
      'PT25H',
      'PT',
      '1H',
      'PT1H30S',
      'PT30S',
      'pt1h',
      'P1D',
      'PT-1H',
      '',
      60,
      null,
    ]) {
      expect(await period(bad), String(bad)).toBe(400)
    }
    for (const bad of ['TRUE', '1', 'yes', '']) expect(await patch({ name: 'timezone.tolerant', value: bad })).toBe(400)
    for (const body of [[], {}, { name: 'unknown', value: 'x' }, { name: 'timezone.tolerant' }, 'text', null]) {
      expect(await patch(body)).toBe(400)
    }
    const tolerant = { name: 'timezone.tolerant', value: 'true' }
    expect(await patch([tolerant, tolerant])).toBe(400)
    expect(await patch({ ...tolerant, extra: 1 })).toBe(400)
    expect(await patch({ name: 'session.charge.period', value: 'PT1H' }, 'v1.0')).toBe(400)
    const all = await patch([tolerant, { name: 'session.charge.period', value: 'bad' }])
    expect(all).toBe(400)
    expect(pick((await twin.call('GET', path())).body, 0, 'value')).toBe('false')
  })

  it('timezone.tolerant opens a line item 12 hours before its start and after its end', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.rates({ Print: 1 })
    const [start, end] = [START + 20 * DAY, START + 40 * DAY]
    await twin.lineItem(instance, { start, end })
    const codeAt = async (now: number) => {
      twin.now = now
      return pick((await twin.access(instance, { Print: 1 })).body, 'requestedItems', 0, 'status', 'code')
    }
    const instants = [
      start - 12 * HOUR - 1,
      start - 12 * HOUR,
      start - 1,
      start,
      end,
      end + 1,
      end + 12 * HOUR,
      end + 12 * HOUR + 1,
    ]
    const strict: unknown[] = []
    for (const at of instants) strict.push(await codeAt(at))
    expect(strict).toEqual(['2006', '2006', '2006', '1001', '1001', '2006', '2006', '2006'])
    await twin.call('PATCH', path(), { body: { name: 'timezone.tolerant', value: 'true' } })
    const tolerant: unknown[] = []
    for (const at of instants) tolerant.push(await codeAt(at))
    expect(tolerant).toEqual(['2006', '1001', '1001', '1001', '1001', '1001', '1001', '2006'])
  })
})
