import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { Directory } from '../../../src/cloud/cells/directory.ts'
import { pagesOf } from '../../../src/cloud/http/merge-cells.ts'
import {
  ADMINISTRATORS,
  CLIENTS_AND_DEVICES,
  type Operation,
  serviceOperation,
} from '../../../src/cloud/http/operation.ts'
import { type ServedCell, authenticatorOver, routeOverCells } from '../../../src/cloud/http/route-over-cells.ts'
import type { Reader } from '../../../src/cloud/storage/store.ts'
import { CodedError } from '../../../src/protocol/errors.ts'

const NORTH = { instance: '00000000-0000-4000-8000-000000000001', session: '00000000-0000-4000-8000-000000000002' }
const SOUTH = { instance: '10000000-0000-4000-8000-000000000001', session: '10000000-0000-4000-8000-000000000002' }
const DEVICE = '20000000-0000-4000-8000-000000000001'
const BOTH = '20000000-0000-4000-8000-000000000002'
const UNKNOWN = '30000000-0000-4000-8000-000000000001'

const ADMINISTRATOR = {
  ...{ kind: 'ADMINISTRATOR', keyId: 'k', name: null, issuer: null, scope: null, deviceId: null, instances: null },
  rights: [{ roles: null, instances: null }],
} as const

const id = z.object({ instanceId: z.string() })

/** An operation that tells in which cell it ran. */
function operationIn(cell: string, declared: object): Operation {
  return serviceOperation({
    ...{
      id: 'x',
      tag: 't',
      summary: 's',
      answers: {},
      areas: ['api'],
      method: 'GET',
      path: '/',
      principals: ADMINISTRATORS,
    },
    handle: async () => ({ status: 200, body: { rows: [cell], next: 0 } }),
    ...declared,
  })
}

class World {
  readonly away = new Set<string>()
  copies = 0
  /** Cells that checked a caller. */
  readonly checked: string[] = []

  cell(name: string, ids: readonly string[], declared: object): ServedCell {
    const { away, checked } = this
    const has = async (each: string) => (ids.includes(each) ? {} : undefined)
    const hasAccount = async (each: string) => ids.includes(each)
    const reader = { instances: { get: has, hasAccount }, sessions: { get: has }, edge: { devices: { get: has } } }
    const fake = {
      name,
      isOpen: name === 'south',
      store: {
        get isUp() {
          return !away.has(name)
        },
        read: async (work: (reader: Reader) => Promise<unknown>) => {
          if (away.has(name)) throw new CodedError('DATABASE_UNREACHABLE', 'away')
          return work(reader as unknown as Reader)
        },
      },
      keys: { trusted: [] },
      now: () => 0,
      authenticator: {
        authenticate: async () => {
          checked.push(name)
          return ADMINISTRATOR
        },
      },
      operations: [operationIn(name, declared)],
    }
    return fake as unknown as ServedCell
  }

  /** Names of the cells in which the request ran. */
  async send(
    declared: object,
    request: Partial<Record<'params' | 'query' | 'headers' | 'body', unknown>>,
  ): Promise<unknown> {
    const cells = [
      this.cell('north', [NORTH.instance, NORTH.session, BOTH, 'old-north'], declared),
      this.cell('south', [SOUTH.instance, SOUTH.session, BOTH, DEVICE, 'old-south'], declared),
    ] as [ServedCell, ServedCell]
    const directory = new Directory(cells)
    const copy = async (): Promise<void> => void (this.copies += 1)
    const route = routeOverCells({ cells, directory, copy }, 0, 'v1.1')
    const { params = {}, query = {}, headers = {}, body } = request
    const head = await route.admit({ params, query, headers } as never)
    const answer = await route.answer(head, { headers, body } as never)
    return (answer.body as { rows: string[] }).rows.join(' ')
  }
}

const inPath = { params: id }
const inQuery = { query: z.object({ instanceId: z.string().optional() }) }
const ofSession = { params: z.object({ sessionId: z.string() }) }
const ofDevice = { principals: CLIENTS_AND_DEVICES }
const creates = { method: 'POST', role: 'rules', body: z.unknown(), account: { part: 'body', path: ['accountId'] } }
const several = { method: 'POST', role: 'rules', body: z.object({ instanceIds: z.array(z.string()) }) }
const control = { method: 'POST', role: 'rules', cells: 'CONTROL' }
const list = { cells: pagesOf('rows') }

const unsigned = (claims: object): string => `e30.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.x`

describe('the cell of a request', () => {
  it.each([
    ['the instance in the path', inPath, { params: { instanceId: SOUTH.instance } }, 'south'],
    ['the instance in capitals', inPath, { params: { instanceId: NORTH.instance.toUpperCase() } }, 'north'],
    ['the instance in the query', inQuery, { query: { instanceId: SOUTH.instance } }, 'south'],
    ['the session', ofSession, { params: { sessionId: SOUTH.session } }, 'south'],
    [
      'the header x-cell, for a session that several cells have',
      ofSession,
      { params: { sessionId: BOTH }, headers: { 'x-cell': 'south' } },
      'south',
    ],
    [
      'the header x-instance-id before the session',
      ofSession,
      { params: { sessionId: UNKNOWN }, headers: { 'x-instance-id': SOUTH.instance } },
      'south',
    ],
    [
      'the device that signed the token',
      ofDevice,
      { headers: { authorization: `Bearer ${unsigned({ iss: DEVICE })}` } },
      'south',
    ],
    ['the account of a new instance', creates, { body: { accountId: 'old-north' } }, 'north'],
    ['the open cell, for a new account', creates, { body: { accountId: 'new' } }, 'south'],
    ['the instances in the body', several, { body: { instanceIds: [SOUTH.instance, UNKNOWN] } }, 'south'],
    ['the header x-cell', {}, { headers: { 'x-cell': 'south' } }, 'south'],
    ['the control cell, for what it has for all', control, { headers: { 'x-cell': 'south' } }, 'north'],
    ['all cells, for a list', list, {}, 'north south'],
    ['one cell, for a list with x-cell', list, { headers: { 'x-cell': 'south' } }, 'south'],
    ['any cell, for an unknown instance', inPath, { params: { instanceId: UNKNOWN } }, 'north'],
  ] as const)('is that of %s', async (_, declared, request, expected) => {
    expect(await new World().send(declared, request)).toBe(expected)
  })

  it('is not chosen by x-cell for a new instance, whose account may have another cell', async () => {
    const request = { body: { accountId: 'old-north' }, headers: { 'x-cell': 'south' } }
    expect(await new World().send(creates, request)).toBe('north')
  })

  it('is not chosen by a header x-instance-id that the operation ignores', async () => {
    const headers = { 'x-instance-id': SOUTH.instance }
    expect(await new World().send(creates, { body: { accountId: 'old-north' }, headers })).toBe('north')
    expect(await new World().send(list, { headers })).toBe('north south')
    await expect(new World().send(inQuery, { headers })).rejects.toMatchObject({ code: 'CELL_REQUIRED' })
  })

  it('is required where nothing else names it, and after the caller was checked', async () => {
    const world = new World()
    await expect(world.send({}, {})).rejects.toMatchObject({
      code: 'CELL_REQUIRED',
      message: 'The request names no cell of this cloud: north, south.',
    })
    expect(world.checked).toEqual(['north'])
    const wrong = world.send({}, { headers: { 'x-cell': 'west' } })
    await expect(wrong).rejects.toMatchObject({
      code: 'BAD_REQUEST',
      message: expect.stringContaining('north') as string,
    })
  })

  it('is one only', async () => {
    const body = { instanceIds: [NORTH.instance, SOUTH.instance] }
    await expect(new World().send(several, { body })).rejects.toMatchObject({ code: 'BAD_REQUEST' })
  })

  it('is not guessed while a cell is unreachable', async () => {
    const world = new World()
    world.away.add('south')
    const unreachable = { code: 'DATABASE_UNREACHABLE' }
    await expect(world.send(inPath, { params: { instanceId: UNKNOWN } })).rejects.toMatchObject(unreachable)
    await expect(world.send(creates, { body: { accountId: 'new' } })).rejects.toMatchObject(unreachable)
    expect(await world.send(inPath, { params: { instanceId: NORTH.instance } })).toBe('north')
    expect(await world.send(creates, { body: { accountId: 'old-north' } })).toBe('north')
  })

  it('checks a caller in a cell that responds while the cell of the request is unknown', async () => {
    const world = new World()
    world.away.add('north')
    expect(await world.send(creates, { body: { accountId: 'old-south' } })).toBe('south')
    expect(world.checked).toEqual(['south'])
  })

  it('gets copies of a change in the control cell before the response, and not of a read', async () => {
    const world = new World()
    await world.send(control, {})
    expect(world.copies).toBe(1)
    await world.send({ cells: 'CONTROL' }, {})
    await world.send(inPath, { params: { instanceId: NORTH.instance } })
    expect(world.copies).toBe(1)
  })

  it('is that of the device that connects to the broker', async () => {
    const world = new World()
    const cells = [world.cell('north', [], {}), world.cell('south', [DEVICE], {})] as [ServedCell, ServedCell]
    const directory = new Directory(cells)
    const authenticator = authenticatorOver({ cells, directory, copy: async () => undefined })
    await authenticator.authenticate(`Bearer ${unsigned({ iss: DEVICE })}`, 0)
    await authenticator.authenticate(`Bearer ${unsigned({ iss: 'somewhere' })}`, 0)
    expect(world.checked).toEqual(['south', 'north'])
  })
})
