/**
 * An application: sends requests one after another in its own session, retries without a response, and reports every
 * response to the auditor.
 */
import type { AccessAnswer, AccessCall } from '../../src/agent/access/access.ts'
import type { AccessResponse } from '../../src/protocol/service/access-request.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { Auditor } from '../audit/auditor.ts'
import type { PlannedRequest } from '../plan.ts'
import { bodyOf } from '../request-body.ts'
import type { Random } from '../world/random.ts'
import type { Scheduler } from '../world/scheduler.ts'
import type { Machine } from './machine.ts'

const PATIENCE_MS = 10_000

const ATTEMPTS_MAX = 4

export interface ApplicationDeps {
  readonly scheduler: Scheduler
  readonly random: Random
  readonly auditor: Auditor
  readonly machine: Machine
  readonly instanceId: string
  /** Null: no retries. */
  readonly session: string | null
  readonly onOutcome: (outcome: string) => void
  /** Called before the first attempt; the result is called with its outcome. */
  readonly watch: (request: PlannedRequest) => (codes: readonly string[]) => void
}

export class Application {
  readonly #deps: ApplicationDeps
  #n = 0
  #busy = false

  constructor(deps: ApplicationDeps) {
    this.#deps = deps
  }

  request(request: PlannedRequest): void {
    const { session, machine, instanceId } = this.#deps
    if (this.#busy) return
    this.#n += 1
    const key = `${machine.name} ${session ?? instanceId} ${this.#n}`
    const text = JSON.stringify(bodyOf(request, key))
    const idempotencyKey = session === null ? null : { session, n: this.#n }
    this.#busy = session !== null
    const call = { apiVersion: 'v1.1', instanceId, text, body: JSON.parse(text) as unknown, idempotencyKey } as const
    this.#attempt(call, key, 1, this.#deps.watch(request))
  }

  #attempt(
    call: AccessCall,
    key: string,
    attempt: number,
    watched: (codes: readonly string[]) => void = () => undefined,
  ): void {
    const { machine, auditor, scheduler, random, onOutcome } = this.#deps
    const again = (): void => {
      if (call.idempotencyKey === null || attempt >= ATTEMPTS_MAX) this.#busy = false
      else scheduler.at(scheduler.now + random.spread(500, 60_000), () => this.#attempt(call, key, attempt + 1))
    }
    const answering = machine.request(call)
    if (answering === undefined) {
      onOutcome('no listener')
      watched([])
      again()
      return
    }
    let waits = true
    const cancel = scheduler.at(scheduler.now + PATIENCE_MS, () => {
      if (!waits) return
      waits = false
      onOutcome('no answer')
      again()
    })
    answering.then(
      (answer) => {
        cancel()
        watched(this.#told(key, answer))
        if (waits) this.#busy = false
        waits = false
      },
      (error: unknown) => {
        cancel()
        const code = error instanceof CodedError ? error.code : 'UNKNOWN'
        machine.deps.note(`refused ${code}`)
        onOutcome(code)
        watched([code])
        // Another attempt may be recorded.
        const isOnly = call.idempotencyKey === null || (waits && attempt === 1 && code !== 'CONFLICT')
        // A failed flush may have recorded it.
        if (isOnly && code !== 'DISK_FAILED') this.#judge(() => auditor.entries.refused(key, machine))
        if (waits && code === 'CONFLICT') again()
        else if (waits) this.#busy = false
        waits = false
      },
    )
  }

  #told(key: string, { body, durability }: AccessAnswer): readonly string[] {
    const { machine, auditor, onOutcome } = this.#deps
    const answer = JSON.parse(body) as AccessResponse
    const codes = answer.requestedItems.map(({ status }) => status.code)
    const isGranted = codes.some((code) => code.startsWith('1'))
    machine.deps.note(`answers ${codes.join(' ')} ${answer.correlationId}`)
    onOutcome(isGranted ? 'granted' : 'refused')
    this.#judge(() => auditor.entries.acknowledged(key, answer, durability, machine))
    return codes
  }

  #judge(check: () => void): void {
    try {
      check()
    } catch (violation) {
      this.#deps.machine.deps.onViolation(violation as never)
    }
  }
}
