/** Requests of applications and agents' sessions on devices, and of the cloud's clients. */
import type { AccessAnswer } from '../../src/agent/access/access.ts'
import type { Decision } from '../../src/core/rules/decision.ts'
import { hasEnded } from '../../src/core/sessions/session.ts'
import { commandDeviceSession } from '../../src/cloud/sessions/command-device-session.ts'
import { commandSession } from '../../src/cloud/sessions/command-session.ts'
import {
  type SessionDeps,
  closeSession,
  heartbeat,
  openSession,
  requestInSession,
} from '../../src/cloud/sessions/session-life.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { AccessResponse } from '../../src/protocol/service/access-request.ts'
import { microOf, ownerOf } from '../audit/records.ts'
import { Violation } from '../audit/violation.ts'
import { Application } from '../device/application.ts'
import type { Machine } from '../device/machine.ts'
import type { Happening, PlannedRequest } from '../plan.ts'
import { bodyOf, readBody } from '../request-body.ts'
import { requestAccess } from '../twin/request-access.ts'
import type { TwinProcess } from '../twin/twin-process.ts'
import type { Devices } from './devices.ts'
import { Refusals } from './refusals.ts'
import type { Rules } from './rules.ts'
import type { Stage } from './stage.ts'

type OfLoad = 'crowd' | 'request' | 'cloud-request' | 'cloud-session' | 'device-session' | 'session-command'

export class Load {
  readonly #stage: Stage
  readonly #devices: Devices
  readonly #rules: Rules
  readonly #refusals: Refusals
  readonly #applications = new Map<string, Application>()
  readonly sessions = new Map<number, string>()
  readonly #deviceSessions = new Map<string, string>()
  #turn = 0
  #keys = 0
  #sessionRequests = 0

  constructor(stage: Stage, devices: Devices, rules: Rules) {
    this.#stage = stage
    this.#devices = devices
    this.#rules = rules
    this.#refusals = new Refusals(stage, rules)
  }

  happen(what: Extract<Happening, { kind: OfLoad }>): void {
    switch (what.kind) {
      case 'request':
        this.#request(what)
        return
      case 'crowd':
        this.#crowd(what)
        return
      case 'cloud-request':
        this.#cloudRequests(what)
        return
      case 'cloud-session':
        this.#cloudSession(what)
        return
      case 'session-command':
        this.#command(what)
        return
      case 'device-session':
        this.#deviceSession(what)
        return
    }
  }

  #crowd({ requests, requesters, device, ...request }: Extract<Happening, { kind: 'crowd' }>): void {
    const { time } = this.#stage
    this.#stage.fault(requests > 1_000 ? 'more than 1,000 requests at once' : 'many requesters at once')
    for (let n = 0; n < requests; n += 1) {
      const requester = requesters === 1 ? request.requester : `crowd-${n % requesters}`
      time.at(time.now + n, () => this.#request({ ...request, kind: 'request', device, session: null, requester }))
    }
  }

  #request(what: Extract<Happening, { kind: 'request' }>): void {
    const hands = (this.#devices.hands[what.device] ?? []).filter(({ isRetired }) => !isRetired)
    this.#turn += 1
    const machine = hands[this.#turn % Math.max(1, hands.length)]
    if (machine === undefined) return
    const name = `${machine.name} ${what.instance ?? 0} ${what.session ?? 'none'}`
    let application = this.#applications.get(name)
    if (application === undefined) {
      application = new Application({
        scheduler: this.#stage.time,
        random: this.#stage.random.stream(name),
        auditor: this.#stage.auditor,
        machine,
        instanceId: this.#rules.instanceId(what.instance),
        session: what.session === null ? null : `app-${what.instance ?? 0}-${what.session}`,
        onOutcome: (outcome) => this.#stage.outcome(outcome),
        watch: (request) => this.#refusals.watch(machine, request),
      })
      this.#applications.set(name, application)
    }
    application.request(what)
  }

  /** Every application on a device ends: sessions of one that stays would be renewed for ever, with entries to deliver. */
  leave(): void {
    for (const machine of this.#devices.machines) {
      for (const [name, id] of this.#deviceSessions) {
        if (name.startsWith(`${machine.name} `)) machine.sessions()?.connectionClosed(id)
      }
    }
  }

  #deviceSession(what: Extract<Happening, { kind: 'device-session' }>): void {
    const machine = this.#devices.first(what.device)
    const sessions = machine.sessions()
    if (sessions === undefined) return
    const name = `${machine.name} ${what.slot}`
    this.#sessionRequests += 1
    const key = `${name} in a session ${this.#sessionRequests}`
    const begin = async (): Promise<string> => {
      const opened = await sessions.open({
        instanceId: this.#rules.instanceId(what.instance),
        owner: null,
        bound: what.isBound === true,
        idempotencyKey: null,
      })
      if (!opened.operable) throw new Error('a session that was just opened takes requests')
      const { sessionId: id } = JSON.parse(opened.body) as { readonly sessionId: string }
      this.#deviceSessions.set(name, id)
      return id
    }
    const ask = async (): Promise<string> => {
      const sessionId = this.#deviceSessions.get(name) ?? (await begin())
      if (what.order === 'CLOSE') {
        this.#deviceSessions.delete(name)
        await sessions.close(sessionId, belongs, null)
        return 'closed'
      }
      if (what.order === 'DISCONNECT') {
        this.#deviceSessions.delete(name)
        sessions.connectionClosed(sessionId)
        this.#stage.fault('connection of a session closed')
        return 'left'
      }
      if (what.order === 'HEARTBEAT') {
        const { operable } = await sessions.heartbeat(sessionId, belongs)
        return operable ? 'kept alive' : 'over'
      }
      const { request, metaData } = readBody(bodyOf(what, key))
      const answer = await sessions.request({
        apiVersion: 'v1.1',
        sessionId,
        request: what.order === 'HALT' ? { ...request, items: [] } : request,
        metaData: what.order === 'HALT' ? [] : metaData.map((each) => ({ ...each })),
        rollbackOnDeny: what.count % 2 === 0,
        belongs,
        idempotencyKey: null,
      })
      if (!answer.operable) {
        this.#deviceSessions.delete(name)
        return 'over'
      }
      // The response to a halt contains the refund.
      if (what.order === 'REQUEST') this.#heard(machine, answer)
      return 'asked'
    }
    const process = machine.agent
    ask().then(
      (outcome) => this.#stage.outcome(`session on the device: ${outcome}`),
      (error: unknown) => {
        if (!(error instanceof CodedError)) {
          if (machine.agent === process)
            this.#stage.violate(new Violation('ASSERTION', `a session fails: ${String(error)}`))
          return
        }
        if (error.code === 'NOT_FOUND') this.#deviceSessions.delete(name)
        this.#stage.outcome(`session on the device: ${error.code}`)
        if (machine.agent !== process || error.code === 'DISK_FAILED') return
        this.#stage.judge(() => this.#stage.auditor.entries.refused(key, machine))
      },
    )
  }

  #heard(machine: Machine, { body, durability }: AccessAnswer): void {
    const answer = JSON.parse(body) as AccessResponse
    this.#stage.judge(() => this.#stage.auditor.entries.acknowledged(null, answer, durability, machine))
  }

  twinClient(): { readonly name: string; readonly ask: (what: PlannedRequest) => Promise<string | undefined> } {
    const ask = async (what: PlannedRequest): Promise<string | undefined> => {
      const { process } = this.#stage.twin
      return process === null ? undefined : this.#stage.twin.run(process, () => this.#cloudRequest(process, what))
    }
    return { name: 'the twin', ask }
  }

  clientOf(machine: Machine): ReturnType<Load['twinClient']> {
    const ask = async (what: PlannedRequest): Promise<string | undefined> => {
      const body = bodyOf(what)
      const instanceId = this.#rules.instanceId(what.instance)
      const call = { apiVersion: 'v1.1', instanceId, text: JSON.stringify(body), body, idempotencyKey: null } as const
      const answer = await machine.request(call)
      if (answer === undefined) return undefined
      this.#heard(machine, answer)
      return (JSON.parse(answer.body) as AccessResponse).requestedItems[0]?.status.code
    }
    return { name: machine.name, ask }
  }

  #cloudRequests({ repeatAfterMs = [], ...what }: Extract<Happening, { kind: 'cloud-request' }>): void {
    const send = (key: string | null): void => {
      this.#stage.byTwinOrRefused(['IDEMPOTENCY_IN_PROGRESS'], async (twin) => {
        await this.#cloudRequest(twin, what, key)
      })
    }
    if (repeatAfterMs.length === 0) {
      send(null)
      return
    }
    this.#keys += 1
    const key = `key ${this.#keys}`
    send(key)
    for (const ms of repeatAfterMs) this.#stage.later(ms, () => send(key))
  }

  /** Resolves with the status code of the first item. */
  async #cloudRequest(twin: TwinProcess, what: PlannedRequest, key: string | null = null): Promise<string> {
    const instanceId = this.#rules.instanceId(what.instance)
    const { text } = await requestAccess(twin, instanceId, bodyOf(what, key), key)
    const { correlationId, requestedItems } = JSON.parse(text) as AccessResponse
    const tokens = requestedItems.reduce((sum, { totalTokensCharged }) => sum + microOf(totalTokensCharged), 0n)
    this.#stage.outcome(`${tokens > 0n ? 'granted' : 'refused'} by the twin${key === null ? '' : ', with a key'}`)
    this.#stage.judge(() => this.#stage.auditor.bill.answered(correlationId, tokens, { key, text }))
    return requestedItems[0]?.status.code ?? ''
  }

  #cloudSession({ heartbeats, ...what }: Extract<Happening, { kind: 'cloud-session' }>): void {
    const { slot } = what
    this.#stage.byTwinOrRefused(SESSION_OVER, (twin) => this.#inCloudSession(twin, what))
    if (heartbeats === undefined) return
    const beat = (): void => this.#stage.byTwinOrRefused(SESSION_OVER, (twin) => this.#heartbeat(twin, slot))
    for (let n = 1; n <= heartbeats.count; n += 1) this.#stage.later(n * heartbeats.everyMs, beat)
  }

  async #heartbeat(twin: TwinProcess, slot: number): Promise<void> {
    const sessionId = this.sessions.get(slot)
    if (sessionId === undefined) return
    const now = twin.now()
    this.#stage.auditor.bill.cloud.sessions.heartbeats(sessionId, now)
    const { operable, session } = await heartbeat(sessionDepsOf(twin), sessionId, belongs, now)
    if (hasEnded(session)) this.sessions.delete(slot)
    this.#stage.outcome(`heartbeat to the twin: ${operable ? 'continues' : 'over'}`)
  }

  async #inCloudSession(
    twin: TwinProcess,
    { slot, close, order, endsOnDeny = false, ...what }: Extract<Happening, { kind: 'cloud-session' }>,
  ): Promise<void> {
    const deps = sessionDepsOf(twin)
    const now = twin.now()
    let sessionId = this.sessions.get(slot)
    if (sessionId === undefined) {
      const opening = { instanceId: this.#rules.instanceId(what.instance), deviceId: null, opening: null }
      const { id } = await openSession(deps, opening, now)
      this.sessions.set(slot, id)
      if (order === undefined) return
      sessionId = id
    }
    if (order === 'LOCK' || order === 'UNLOCK' || order === 'TERMINATE') {
      await commandSession(deps, { id: sessionId, command: order }, now)
      this.#stage.fault(`session of the twin: ${order.toLowerCase()}`)
      return
    }
    this.sessions.delete(slot)
    if (close) {
      await closeSession(deps, sessionId, belongs, now)
      return
    }
    const { request, metaData } = readBody(bodyOf(what))
    const asked = {
      sessionId,
      correlationId: twin.newId(),
      request: order === 'HALT' ? { ...request, items: [] } : request,
      metaData: order === 'HALT' ? [] : metaData.map((each) => JSON.stringify(each)),
      rollbackOnDeny: !endsOnDeny,
    }
    const answer = await requestInSession(deps, asked, belongs, now)
    if (answer.operable && order !== 'HALT') this.#answeredInSession(asked.correlationId, answer.decision)
    const goesOn = answer.operable ? answer.granted || !endsOnDeny : !hasEnded(answer.session)
    if (goesOn) this.sessions.set(slot, sessionId)
    this.#stage.outcome('asked in a session of the twin')
  }

  #answeredInSession(correlationId: string, { items }: Decision): void {
    const tokens = items.reduce((sum, item) => (item.outcome === 'GRANTED' ? sum + item.total : sum), 0n)
    this.#stage.judge(() => this.#stage.auditor.bill.answered(correlationId, tokens, { key: null, text: '' }))
  }

  /** An administrator's command for a session that a device keeps. */
  #command({ device, slot, command }: Extract<Happening, { kind: 'session-command' }>): void {
    const machine = this.#devices.first(device)
    const { deviceId } = ownerOf(machine.deps.disk.database)
    const id = this.#deviceSessions.get(`${machine.name} ${slot}`)
    if (deviceId === null || id === undefined) return
    this.#stage.byTwinOrRefused(SESSION_OVER, async (twin) => {
      const { outcome } = await commandDeviceSession(sessionDepsOf(twin), { deviceId, id, command }, twin.now())
      this.#stage.fault(`session of a device: ${command.toLowerCase()}, ${outcome.toLowerCase()}`)
    })
  }
}

/** By a timer, or because a restored cloud has forgotten it, or the device. */
const SESSION_OVER = ['CONFLICT', 'NOT_FOUND'] as const

const belongs = (): void => undefined

function sessionDepsOf(twin: TwinProcess): SessionDeps {
  return { ...twin, sessionIntervalMs: twin.terms.sessionIntervalMs }
}
