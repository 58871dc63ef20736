import { describe, expect, it } from 'vitest'
import { openTwin, pick, text } from '../../harness.ts'
import { limitedToken } from '../../console/browse.ts'

const V10 = '/provisioning/api/v1.0/instances'
const V11 = '/provisioning/api/v1.1/instances'

describe('instances', () => {
  it('are made with the fields of the interface', async () => {
    await using twin = await openTwin()
    const made = await twin.call('POST', V10, { body: { shortName: 'Käse 🧀', accountId: 'ACC-1' } })
    expect(made.status).toBe(201)
    expect(made.body).toEqual({
      id: expect.stringMatching(/^[0-9a-f-]{36}$/) as string,
      shortName: 'Käse 🧀',
      accountId: 'ACC-1',
      defaultInstance: true,
      created: twin.now,
      modified: twin.now,
    })
    expect((await twin.call('GET', `${V10}/${text(made.body, 'id')}`)).body).toEqual(made.body)
    expect((await twin.call('GET', `${V10}/${text(made.body, 'id').toUpperCase()}`)).body).toEqual(made.body)
  })

  it('make the first of an account its default, and find it', async () => {
    await using twin = await openTwin()
    const first = await twin.instance('A')
    const second = await twin.instance('A')
    const other = await twin.instance('B')
    const found = await twin.call('GET', `${V11}?accountId=A&default=true`)
    expect(found.body).toMatchObject({ content: [{ id: first, defaultInstance: true }], next: 0 })
    expect((await twin.call('GET', `${V11}/${second}`)).body).toMatchObject({ defaultInstance: false })
    expect((await twin.call('GET', `${V11}/${other}`)).body).toMatchObject({ defaultInstance: true })
    expect((await twin.call('GET', `${V11}?accountId=C&default=true`)).body).toEqual({ content: [], next: 0 })
  })

  it('have one default also when two are made at the same time', async () => {
    await using twin = await openTwin()
    const ids = await Promise.all(Array.from({ length: 8 }, () => twin.instance('A')))
    const all = (await twin.call('GET', V11)).body
    const defaults = ids.map((_, index) => pick(all, 'content', index, 'defaultInstance')).filter(Boolean)
    expect(defaults).toEqual([true])
  })

  it('are made once under an idempotency key, also at the same time', async () => {
    await using twin = await openTwin()
    const make = (key: string, shortName = 's', path = V11) =>
      twin.call('POST', path, { body: { shortName, accountId: 'A' }, headers: { 'idempotency-key': key } })
    const made = await Promise.all([make('a'), make('a'), make('a', 's', V10)])
    expect(made.map(({ status }) => status)).toEqual([201, 201, 201])
    expect(new Set(made.map(({ text }) => text)).size).toBe(1)
    expect(await make('a', 'other')).toMatchObject({ status: 409, body: { code: 'IDEMPOTENCY_CONFLICT' } })
    expect(text((await make('b')).body, 'id')).not.toBe(text(made[0].body, 'id'))
    expect(pick((await twin.call('GET', V11)).body, 'content')).toHaveLength(2)
  })

  it('are made once under an idempotency key that several administrators use', async () => {
    await using twin = await openTwin()
    const make = (token: string) =>
      twin.call('POST', V11, {
        ...{ token, body: { shortName: 's', accountId: 'A' }, headers: { 'idempotency-key': 'a' } },
      })
    const tokens = [await twin.administrationToken(), await limitedToken(twin, {})]
    const made = await Promise.all(tokens.map(make))
    expect(made.map(({ status }) => status)).toEqual([201, 201])
    expect(pick((await twin.call('GET', V11)).body, 'content')).toHaveLength(1)
  })

  it('are listed page by page', async () => {
    await using twin = await openTwin()
    const ids: string[] = []
    for (let n = 0; n < 5; n += 1) ids.push(await twin.instance(`account ${n}`))
    const seen: string[] = []
    let next = 0
    do {
      const { body } = await twin.call('GET', `${V11}?next=${next}&size=2`)
      for (const one of pick(body, 'content') as { id: string }[]) seen.push(one.id)
      next = Number(pick(body, 'next'))
    } while (next !== 0)
    expect(seen).toEqual(ids)
    expect(pick((await twin.call('GET', `${V11}?size=500`)).body, 'next')).toBe(0)
    for (const size of [999_999, 2 ** 31 - 1, '9'.repeat(400)]) {
      expect(pick((await twin.call('GET', `${V11}?size=${size}`)).body, 'content', 'length')).toBe(5)
    }
    expect((await twin.call('GET', `${V11}?next=99`)).body).toEqual({ content: [], next: 0 })
  })

  it('are below api as well in v1.1, and only there', async () => {
    await using twin = await openTwin()
    const made = await twin.call('POST', '/api/v1.1/instances', { body: { shortName: 's', accountId: 'a' } })
    expect(made.status).toBe(201)
    expect((await twin.call('GET', '/api/v1.1/instances')).status).toBe(200)
    expect((await twin.call('GET', `/api/v1.1/instances/${text(made.body, 'id')}`)).status).toBe(200)
    expect((await twin.call('GET', '/api/v1.0/instances')).status).toBe(404)
  })

  it('are refused with a message that names the field', async () => {
    await using twin = await openTwin()
    for (const [body, field] of [
      [{ accountId: 'a' }, 'shortName'],
      [{ shortName: '', accountId: 'a' }, 'shortName'],
      [{ shortName: 'x'.repeat(101), accountId: 'a' }, 'shortName'],
      [{ shortName: 's' }, 'accountId'],
      [{ shortName: 's', accountId: '' }, 'accountId'],
      [{ shortName: 5, accountId: 'a' }, 'shortName'],
      [{ shortName: 's', accountId: 'a', owner: 'x' }, 'owner'],
      [{ shortName: 'a\u0000', accountId: 'a' }, 'shortName'],
      [[], 'body'],
      [null, 'body'],
    ] as const) {
      const { status, body: said } = await twin.call('POST', V11, { body })
      expect(status).toBe(400)
      expect(text(said, 'message')).toContain(field)
      expect(pick(said, 'code')).toBe('BAD_REQUEST')
    }
    expect((await twin.call('POST', V11, { body: { shortName: 'x'.repeat(100), accountId: 'a' } })).status).toBe(201)
  })

  it('are not found, or not even asked for', async () => {
    await using twin = await openTwin()
    expect((await twin.call('GET', `${V11}/64d2028c-ae87-4069-a624-66089d957ef9`)).status).toBe(404)
    expect((await twin.call('GET', `${V11}/no-uuid`)).status).toBe(400)
    for (const query of [
      'accountId=a',
      'default=true',
      'accountId=a&default=false',
      'accountId=a&default=1',
      'next=-1',
      'next=x',
      'size=0',
      'size=1.5',
    ]) {
      expect((await twin.call('GET', `${V11}?${query}`)).status, query).toBe(400)
    }
  })
})
