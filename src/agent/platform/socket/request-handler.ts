/** Handles the socket's requests, whichever way they arrive. No business rules, and no input can end the process. */
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { CodedError } from '../../../protocol/errors.ts'
import type { KeptDecision } from '../../../protocol/local/decision.ts'
import { REFUSALS, allowedMethods } from '../../../protocol/service/refusals.ts'
import type { OffersWire } from '../../../protocol/local/offers.ts'
import type { AgentStatusWire } from '../../../protocol/local/status.ts'
import type { Access, AccessCall } from '../../access/access.ts'
import {
  type Caller,
  type CallerQuota,
  type CallerRole,
  type Callers,
  callerName,
} from '../../access/callers/callers.ts'
import type { RotationStatus } from '../../keys/rotation-requests.ts'
import { idempotencyKeyOf, type JsonBody, type Route } from './parse-request.ts'
import type { Reply } from '../../../platform/fast-path.ts'
import { answered, plain, refused, traced } from './reply.ts'
import {
  type SessionService,
  type SessionTarget,
  answerSession,
  instanceHeaderOf,
  isForAdministrators,
} from './session-requests.ts'

export interface RequestHandlerDeps {
  /** Requests being decided or committed; further ones are refused with OVERLOADED. */
  readonly waitingMax: number
  readonly access: Pick<Access, 'request'>
  readonly sessions: SessionService
  readonly status: () => AgentStatusWire
  readonly offers: () => OffersWire
  /** For technicians. */
  readonly inspection: {
    readonly decision: FindDecision
    readonly log: () => string
    /** Remembers a refusal that has no ledger entry; returns its correlation id. */
    readonly refused: (error: CodedError, request: string, caller: string | null) => string
  }
  readonly rotateKey: () => Promise<RotationStatus>
  /** Of the cloud, with its path prefix, to which the paths of all areas are added. Null: not enrolled yet. */
  readonly cloudAddress: () => string | null
  /** Omitted: every client has every role, and callers are not identified. */
  readonly callers?: {
    readonly identify: (connection: Socket) => Caller | CodedError
    readonly rules: Callers
  }
  /** Called for unexpected errors; the client receives INTERNAL. */
  readonly onFault: (error: unknown) => void
}

export type Answer = (reply: Reply) => void

type Headers = Readonly<Record<string, string | readonly string[] | undefined>>

export interface AccessHead {
  readonly target: Extract<Route, { to: 'access' }>
  readonly headers: Headers
}

/** HANDING_OVER: requests that clients have already sent are served, each as the last of its connection. */
export type Phase = 'SERVING' | 'HANDING_OVER' | 'STOPPING'

interface Authorized {
  readonly owner: string | null
  readonly quota: CallerQuota | undefined
}

const UNIDENTIFIED: Authorized = { owner: null, quota: undefined }

export class RequestHandler {
  readonly #deps: RequestHandlerDeps
  readonly #callers = new WeakMap<Socket, Caller | CodedError>()
  readonly #connected = new Map<string, number>()
  /** Sessions that end with their connection. */
  readonly #bound = new WeakMap<Socket, Set<string>>()
  #waiting = 0
  phase: Phase = 'SERVING'

  constructor(deps: RequestHandlerDeps) {
    this.#deps = deps
  }

  /** Counts a new connection. False: its caller has too many. */
  acceptConnection(connection: Socket): boolean {
    const caller = this.#callerAt(connection)
    // Its requests are refused with the reason.
    if (caller === null || caller instanceof CodedError) return true
    const quota = this.#deps.callers?.rules.quotaOf(caller)
    const name = quota?.key ?? callerName(caller)
    const open = this.#connected.get(name) ?? 0
    const max = quota?.connectionsMax ?? null
    if (max !== null && open >= max) return false
    this.#connected.set(name, open + 1)
    connection.once('close', () => {
      const left = (this.#connected.get(name) ?? 1) - 1
      if (left === 0) this.#connected.delete(name)
      else this.#connected.set(name, left)
    })
    return true
  }

  isBound(connection: Socket): boolean {
    return this.#bound.has(connection)
  }

  access(head: AccessHead, body: JsonBody | CodedError, connection: Socket, answer: Answer): void {
    const refuse = (error: unknown): void => {
      const { apiVersion, instanceId } = head.target
      answer(this.#refusal(error, `POST ${apiVersion} access-request of ${instanceId}`, connection))
    }
    const authorized = this.#authorize(connection, 'use')
    if (authorized instanceof CodedError) {
      refuse(authorized)
      return
    }
    const call = body instanceof CodedError ? body : callOf(head, body, authorized)
    if (call instanceof CodedError) {
      refuse(call)
      return
    }
    if (this.#refuseIfFull(refuse)) return
    this.#wait(this.#deps.access.request(call), (result) => answer(answered(result)), refuse)
  }

  session(target: SessionTarget, request: IncomingMessage, body: JsonBody | CodedError | null, answer: Answer): void {
    const refuse = (error: unknown): void => {
      const { apiVersion, operation, sessionId } = target
      answer(this.#refusal(error, `${operation} ${apiVersion} session ${sessionId}`.trimEnd(), request.socket))
    }
    const { headers, url = '', socket } = request
    const administers = this.#administers(socket)
    const authorized = this.#authorize(socket, administers && isForAdministrators(target) ? 'administer' : 'use')
    if (authorized instanceof CodedError) {
      refuse(authorized)
      return
    }
    const sessionRequest = {
      target,
      url,
      headers,
      body,
      ...authorized,
      administers,
      bind: (sessionId: string) => this.#bind(sessionId, socket),
    }
    if (this.#refuseIfFull(refuse)) return
    this.#wait(answerSession(this.#deps.sessions, sessionRequest), answer, refuse)
  }

  #bind(sessionId: string, connection: Socket): void {
    const { sessions } = this.#deps
    const known = this.#bound.get(connection)
    const bound = known ?? new Set()
    if (known === undefined) {
      this.#bound.set(connection, bound)
      connection.once('close', () => bound.forEach((id) => sessions.connectionClosed(id)))
    }
    // A connection may open any number of sessions, one after another.
    for (const id of bound) if (!sessions.isOpen(id)) bound.delete(id)
    bound.add(sessionId)
    if (connection.destroyed) sessions.connectionClosed(sessionId)
  }

  other(target: Exclude<Route, { to: 'access' | 'session' }>, connection: Socket, answer: Answer): void {
    switch (target.to) {
      case 'status':
        answer(this.#read(connection, 'observe', () => JSON.stringify(this.#deps.status())))
        break
      case 'offers':
        answer(this.#read(connection, 'use', () => JSON.stringify(this.#deps.offers())))
        break
      case 'decision': {
        const { decision } = this.#deps.inspection
        this.#answerLater(connection, 'observe', () => searchDecision(decision, target.correlationId), answer)
        break
      }
      case 'log':
        answer(this.#read(connection, 'observe', () => this.#deps.inspection.log(), 'application/x-ndjson'))
        break
      case 'rotate-key': {
        const rotate = async (): Promise<Reply> => plain(JSON.stringify(await this.#deps.rotateKey()))
        this.#answerLater(connection, 'administer', rotate, answer)
        break
      }
      case 'live':
        answer(plain('{"live":true}'))
        break
      case 'cloud':
        answer(refused(this.#onlyInCloud()))
        break
      case 'options':
        answer({ status: 204, headers: ['Allow', allowedMethods(target.allowed)], body: '' })
        break
      case 'refusal':
        answer(allowing(refused(target.error), target.allowed))
    }
  }

  #onlyInCloud(): CodedError {
    const address = this.#deps.cloudAddress()
    const where = address === null ? 'the cloud; this device is not enrolled with one yet' : `the cloud at ${address}`
    return new CodedError('NOT_ON_DEVICE', `Devices do not offer this operation. Send the request to ${where}.`)
  }

  /** True: no more requests may wait, so this one is refused. */
  #refuseIfFull(refuse: (error: CodedError) => void): boolean {
    const { waitingMax } = this.#deps
    if (this.#waiting < waitingMax) return false
    refuse(new CodedError('OVERLOADED', `the agent already has ${waitingMax} pending requests (socket.waiting_max)`))
    return true
  }

  /** Call {@link RequestHandler.#refuseIfFull} first. Takes a promise: a function would keep the body in memory until it settles. */
  #wait<T>(work: Promise<T>, answer: (result: T) => void, refuse: (error: unknown) => void): void {
    this.#waiting += 1
    work.then(
      (result) => {
        this.#waiting -= 1
        answer(result)
      },
      (error: unknown) => {
        this.#waiting -= 1
        refuse(error)
      },
    )
  }

  /** Queries the kernel once per connection. Null: callers are not identified. */
  #callerAt(connection: Socket): Caller | CodedError | null {
    const known = this.#callers.get(connection)
    if (known !== undefined) return known
    const found = this.#deps.callers?.identify(connection) ?? null
    if (found !== null) this.#callers.set(connection, found)
    return found
  }

  #authorize(connection: Socket, role: CallerRole): Authorized | CodedError {
    const { callers } = this.#deps
    if (callers === undefined) return UNIDENTIFIED
    const { rules } = callers
    const caller = this.#callerAt(connection)
    if (caller === null) return UNIDENTIFIED
    if (caller instanceof CodedError) return caller
    try {
      rules.require(caller, role)
    } catch (error) {
      if (error instanceof CodedError) return error
      throw error
    }
    return { owner: callerName(caller), quota: rules.quotaOf(caller) }
  }

  #administers(connection: Socket): boolean {
    const caller = this.#callerAt(connection)
    if (caller instanceof CodedError) return false
    return caller === null || this.#deps.callers?.rules.isIn(caller, 'administer') === true
  }

  #read(connection: Socket, role: CallerRole, read: () => string, type?: string): Reply {
    const authorized = this.#authorize(connection, role)
    if (authorized instanceof CodedError) return refused(authorized)
    try {
      return plain(read(), type)
    } catch (error) {
      return this.#failure(error)
    }
  }

  #answerLater(connection: Socket, role: CallerRole, work: () => Promise<Reply>, answer: Answer): void {
    const authorized = this.#authorize(connection, role)
    if (authorized instanceof CodedError) {
      answer(refused(authorized))
      return
    }
    const refuse = (error: unknown): void => answer(this.#failure(error))
    if (this.#refuseIfFull(refuse)) return
    this.#wait(work(), answer, refuse)
  }

  /** A refusal without a ledger entry: stores it under a correlation id that the response carries. */
  #refusal(error: unknown, request: string, connection: Socket): Reply {
    const coded = this.#coded(error)
    const caller = this.#callers.get(connection)
    const name = caller === undefined || caller instanceof CodedError ? null : callerName(caller)
    return traced(refused(coded), this.#deps.inspection.refused(coded, request, name))
  }

  #failure(error: unknown): Reply {
    return refused(this.#coded(error))
  }

  /** Reports an unexpected error; the client receives INTERNAL. */
  #coded(error: unknown): CodedError {
    if (error instanceof CodedError) return error
    this.#deps.onFault(error)
    return new CodedError('INTERNAL', 'the agent failed to handle the request; see its log', { cause: error })
  }
}

type FindDecision = (correlationId: string) => Promise<KeptDecision | null>

async function searchDecision(find: FindDecision, correlationId: string): Promise<Reply> {
  const kept = await find(correlationId)
  if (kept !== null) return plain(JSON.stringify(kept))
  return refused(new CodedError('DECISION_UNKNOWN', `this device has no record of decision ${correlationId}`))
}

function allowing(reply: Reply, allowed: readonly string[] | undefined): Reply {
  return allowed === undefined ? reply : { ...reply, headers: [...reply.headers, 'Allow', allowedMethods(allowed)] }
}

function callOf(
  { target, headers }: AccessHead,
  { text, value, isKept = false }: JsonBody,
  { owner, quota }: Authorized,
): AccessCall | CodedError {
  try {
    const { apiVersion, instanceId } = target
    const named = instanceHeaderOf(headers)
    if (named !== null && named !== instanceId) throw new CodedError('INSTANCE_NOT_IN_TOKEN', REFUSALS.instanceOfPath)
    const idempotencyKey = idempotencyKeyOf(headers, owner)
    return { apiVersion, instanceId, text, body: value, isKept, idempotencyKey, quota }
  } catch (error) {
    if (error instanceof CodedError) return error
    throw error
  }
}
