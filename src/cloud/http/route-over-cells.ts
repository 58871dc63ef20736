/**
 * Serves an operation over several cells: finds the cell of the instance, device, session or account that a request names,
 * and answers there as if it was the only one. Any cell can check an administrator or a client, because keys are copied.
 */
import { decodeJwt } from 'jose'
import { CodedError } from '../../protocol/errors.ts'
import { instanceHeader } from '../../protocol/service/sessions.ts'
import { uuidInLowerCase } from '../../protocol/wire.ts'
import type { Directory, DirectoryCell, Kind } from '../cells/directory.ts'
import type { Store } from '../storage/store.ts'
import type { Authenticator } from '../service-api/authenticate.ts'
import type { Operation } from './operation.ts'
import { type NamedId, namedIds, namesOf } from './scope.ts'
import {
  CELL_HEADER,
  type CheckDeps,
  type Head,
  type Received,
  type RequestHead,
  type Route,
  routeTo,
} from './route.ts'

export interface ServedCell extends DirectoryCell, CheckDeps {
  readonly store: Store & { readonly isUp: boolean }
  /** The same in all cells. */
  readonly operations: readonly Operation[]
}

export interface OverCells {
  /** The first one is the control cell. */
  readonly cells: readonly [ServedCell, ...ServedCell[]]
  readonly directory: Directory<ServedCell>
  /** Copies what the control cell has for all cells. */
  readonly copy: () => Promise<void>
}

/** @param index of the operation in each cell */
export function routeOverCells(over: OverCells, index: number, version: string): Route {
  const { cells, copy } = over
  const routes = new Map(cells.map((cell) => [cell, routeTo(operationAt(cell, index), version, cell)]))
  const operation = operationAt(cells[0], index)
  const choice = new CellChoice(over, operation, version)
  const chosen = new WeakMap<Head, ServedCell>()
  const routeIn = (cell: ServedCell): Route => {
    const route = routes.get(cell)
    if (route === undefined) throw new Error('invariant: each cell has each operation')
    return route
  }
  return {
    admit: async (request) => {
      const cell = await choice.byHead(request)
      const head = await routeIn(cell ?? choice.any()).admit(request)
      if (cell !== null) chosen.set(head, cell)
      return head
    },
    enter: (head, response) => routeIn(chosen.get(head) ?? cells[0]).enter(head, response),
    answer: async (head, request) => {
      const known = chosen.get(head)
      if (known === undefined && typeof operation.cells === 'function') {
        const ask = cells.map((cell) => (query: unknown) => routeIn(cell).answer({ ...head, query }, request))
        return operation.cells(ask, head.query)
      }
      const cell = known ?? (await choice.byBody(head, request))
      const answer = await routeIn(cell).answer(head, request)
      if (operation.cells === 'CONTROL' && operation.method !== 'GET') await copy()
      return answer
    },
  }
}

const KINDS: Readonly<Record<NamedId[0], Kind>> = {
  instanceId: 'instance',
  instanceIds: 'instance',
  deviceId: 'device',
  sessionId: 'session',
}

/** For connections of devices to the broker. */
export function authenticatorOver({ cells, directory }: OverCells): Pick<Authenticator, 'authenticate'> {
  return {
    async authenticate(authorization, now) {
      const [issuer] = issuerOf(authorization)
      const cell = issuer === undefined ? null : await directory.find('device', issuer[1])
      return (cell ?? cells[0]).authenticator.authenticate(authorization, now)
    },
  }
}

class CellChoice {
  readonly #over: OverCells
  readonly #operation: Operation
  readonly #inHead: ReturnType<typeof namesOf>
  readonly #inBody: ReturnType<typeof namesOf>

  constructor(over: OverCells, operation: Operation, version: string) {
    const named = namesOf(operation, version)
    this.#over = over
    this.#operation = operation
    // A session is in the cell of its instance, so that the header saves a search. Other operations ignore the header.
    const isOfSessions = named.some(([part, field]) => field === 'sessionId' || part === 'header' || part === 'body')
    const usesHeader = operation.readsInstanceHeader && isOfSessions
    this.#inHead = [
      ...(usesHeader ? [['header', 'instanceId'] as const] : []),
      ...named.filter(([part]) => part !== 'body' && part !== 'header'),
    ]
    this.#inBody = named.filter(([part]) => part === 'body')
  }

  /** Null: the body decides, or all cells answer. @throws CodedError */
  async byHead({ params, query, headers }: RequestHead): Promise<ServedCell | null> {
    const { cells, principals, account } = this.#operation
    if (cells === 'CONTROL') return this.#over.cells[0]
    const ids = namedIds(this.#inHead, { params, query, header: { instanceId: headers[instanceHeader] } })
    // Only a cell knows whose the session is.
    const isOfSession = ids.length > 0 && ids.every(([field]) => field === 'sessionId')
    const found = (isOfSession ? this.#named(headers) : null) ?? (await this.#firstOf(ids))
    if (found !== null) return found
    if (principals.includes('DEVICE')) {
      const device = await this.#firstOf(issuerOf(headers.authorization))
      if (device !== null) return device
    }
    if (account?.part === 'query') {
      const id = textAt(query, account.path)
      return id === undefined ? this.#named(headers) : ((await this.#over.directory.find('account', id)) ?? this.any())
    }
    if (account !== undefined || this.#inBody.length > 0 || principals.includes('ENROLLMENT')) return null
    // No cell has it.
    if (ids.length > 0 || cells === 'ANY') return this.any()
    return this.#named(headers)
  }

  /** @throws CodedError CELL_REQUIRED */
  async byBody({ principal }: Head, { body }: Pick<Received, 'body'>): Promise<ServedCell> {
    const { account } = this.#operation
    const { cells, directory } = this.#over
    if (account?.part === 'body') {
      const id = textAt(body, account.path)
      return id === undefined ? this.any() : directory.cellToCreateIn(id)
    }
    const ids = principal.kind === 'ENROLLMENT' ? instancesOf(principal.token) : namedIds(this.#inBody, { body })
    if (ids.length === 0 && this.#inBody.length === 0) {
      const names = cells.map(({ name }) => name).join(', ')
      throw new CodedError('CELL_REQUIRED', `The request names no cell of this cloud: ${names}.`)
    }
    const found = new Set<ServedCell>()
    for (const [field, id] of ids) {
      const cell = await directory.find(KINDS[field], id)
      if (cell !== null) found.add(cell)
    }
    const [cell, ...others] = found
    if (others.length === 0) return cell ?? this.any()
    const names = [...found].map(({ name }) => name).join(', ')
    throw new CodedError(
      'BAD_REQUEST',
      `The request names instances of several cells: ${names}. Send one for each cell.`,
    )
  }

  any(): ServedCell {
    const { cells } = this.#over
    return cells.find(({ store }) => store.isUp) ?? cells[0]
  }

  async #firstOf(ids: readonly NamedId[]): Promise<ServedCell | null> {
    for (const [field, id] of ids) {
      const cell = await this.#over.directory.find(KINDS[field], id)
      if (cell !== null) return cell
    }
    return null
  }

  /** @throws CodedError BAD_REQUEST */
  #named({ [CELL_HEADER]: name }: RequestHead['headers']): ServedCell | null {
    if (name === undefined) return null
    const { cells } = this.#over
    const cell = cells.find((each) => each.name === name)
    if (cell !== undefined) return cell
    const names = cells.map((each) => each.name).join(', ')
    throw new CodedError('BAD_REQUEST', `${CELL_HEADER}: there is no such cell. Name one of: ${names}.`)
  }
}

function operationAt({ operations }: ServedCell, index: number): Operation {
  const operation = operations[index]
  if (operation === undefined) throw new Error('invariant: each cell has each operation')
  return operation
}

/** The device that claims to have signed the token: its cell checks it. */
function issuerOf(authorization: string | undefined): readonly NamedId[] {
  const id = uuidInLowerCase.safeParse(claimsOf(authorization?.replace(/^Bearer +/i, '').trim() ?? '')['iss'])
  return id.success ? [['deviceId', id.data]] : []
}

function instancesOf(token: string): readonly NamedId[] {
  return namedIds([['body', 'instanceIds']], { body: { instanceIds: claimsOf(token)['instances'] } })
}

function claimsOf(token: string): Readonly<Record<string, unknown>> {
  try {
    return decodeJwt(token)
  } catch {
    return {}
  }
}

function textAt(given: unknown, path: readonly string[]): string | undefined {
  const found = path.reduce(
    (value, name) => (value as Readonly<Record<string, unknown>> | null | undefined)?.[name],
    given,
  )
  return typeof found === 'string' ? found : undefined
}
