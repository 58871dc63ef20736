/**
 * The cloud's HTTP interface for devices: its operations with their checks, without sockets, whose event sequence a seed
 * cannot control.
 */
import { EventEmitter } from 'node:events'
import type { HttpAnswer, HttpRequest } from '../../src/agent/platform/http/exchange.ts'
import { ownDeviceOperations } from '../../src/cloud/http/edge/device.ts'
import { enrollmentOperations } from '../../src/cloud/http/edge/enrollment.ts'
import { type Answer, type Operation, addressesOf } from '../../src/cloud/http/operation.ts'
import { pathPattern } from '../../src/cloud/http/path-pattern.ts'
import { type CheckDeps, type Route, routeTo } from '../../src/cloud/http/route.ts'
import { routeOverCells } from '../../src/cloud/http/route-over-cells.ts'
import { Authenticator } from '../../src/cloud/service-api/authenticate.ts'
import { sessionOperations } from '../../src/cloud/http/service/sessions.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { Store } from '../../src/cloud/storage/store.ts'
import type { TwinDefects } from '../defects/twin-defects.ts'
import type { TwinProcess } from './twin-process.ts'

const ORIGIN = 'https://twin.example'

const PUSH_URL = 'mqtts://twin.example'

export const addresses = (hasPush: boolean) => () => ({
  edge: `${ORIGIN}/edge/api/v1`,
  service: `${ORIGIN}/api`,
  push: hasPush ? PUSH_URL : null,
})

interface Served extends Route {
  readonly operation: Operation
  readonly path: RegExp
}

export class HttpInterface {
  readonly #twin: TwinProcess
  readonly #served: readonly Served[]

  constructor(twin: TwinProcess, defects: Pick<TwinDefects, 'operation' | 'cells'>, hasPush: boolean) {
    this.#twin = twin
    const operations = operationsOf(twin, hasPush).map((operation) => defects.operation(operation, twin))
    const cells = twin.cells?.over((store) => ({ ...servedBy(twin, store), operations }))
    const over = cells && defects.cells(cells)
    this.#served = operations.flatMap((operation, index) =>
      operation.versions.flatMap((version) => {
        const route = over === undefined ? routeTo(operation, version, twin) : routeOverCells(over, index, version)
        return addressesOf(operation, version).map((path) => ({
          ...route,
          operation,
          path: pathPattern(path, '[^/]+'),
        }))
      }),
    )
  }

  async answer(request: HttpRequest): Promise<HttpAnswer> {
    const date = new Date(this.#twin.now()).toUTCString()
    const response = new EventEmitter()
    try {
      const { status, headers, body, text } = await this.#handle(request, response)
      return { status, headers: { date, ...headers }, body: text ?? (body === undefined ? '' : JSON.stringify(body)) }
    } catch (error) {
      if (!(error instanceof CodedError)) throw error
      const { code, message, httpStatus, details } = error
      const { retryAfterMs } = details
      const wait = typeof retryAfterMs === 'number' ? { 'retry-after': String(Math.ceil(retryAfterMs / 1000)) } : {}
      return { status: httpStatus, headers: { date, ...wait }, body: JSON.stringify({ message, code }) }
    } finally {
      response.emit('close')
    }
  }

  async #handle({ method, url, headers, body }: HttpRequest, response: EventEmitter): Promise<Answer> {
    const { pathname, searchParams } = new URL(url)
    for (const { operation, path, admit, answer } of this.#served) {
      const match = operation.method === method ? path.exec(pathname) : null
      if (match === null) continue
      const head = await admit({ headers, params: { ...match.groups }, query: Object.fromEntries(searchParams) })
      operation.enter?.(head.principal, response as never)
      const read: unknown = body === null ? undefined : JSON.parse(body)
      return answer(head, { headers, body: read, log: { warn: () => undefined } })
    }
    throw new CodedError('NOT_FOUND', `There is no ${method} ${pathname}.`)
  }
}

/** How a cell checks callers. The operations belong to the site: the control cell knows none of its devices. */
function servedBy({ cells, authenticator, keys, now }: TwinProcess, store: Store): CheckDeps {
  if (store !== cells?.control) return { store, authenticator, keys, now }
  const ownAuthenticator = new Authenticator({
    store,
    defer: (call) => call(),
    takeNextKey: async () => undefined,
    signIn: null,
  })
  return { store, authenticator: ownAuthenticator, keys, now }
}

function operationsOf(twin: TwinProcess, hasPush: boolean): readonly Operation[] {
  return [
    ...enrollmentOperations({ ...twin, addresses: addresses(hasPush) }),
    ...ownDeviceOperations({
      ...twin,
      addresses: addresses(hasPush),
      // Changes while the process works.
      get engine() {
        return twin.engine
      },
      onKeyReplaced: () => undefined,
    }),
    ...sessionOperations({ ...twin, sessionIntervalMs: twin.terms.sessionIntervalMs }),
  ]
}
