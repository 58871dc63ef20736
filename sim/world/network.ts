/**
 * Network between one device and the cloud. Requests and responses are delayed, reordered, duplicated, lost in one or
 * both directions, or replayed.
 */
import type { HttpAnswer, HttpExchange, HttpRequest } from '../../src/agent/platform/http/exchange.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { Random } from './random.ts'
import type { Scheduler } from './scheduler.ts'

/** Current quality. Probabilities per message, times in ms. */
export interface Weather {
  readonly requestsLost: number
  readonly answersLost: number
  readonly repeated: number
  readonly delayMax: number
  readonly lateMax: number
  readonly late: number
  readonly oldAnswers: number
  readonly broken: number
}

export const CALM: Weather = {
  requestsLost: 0,
  answersLost: 0,
  repeated: 0,
  delayMax: 60,
  lateMax: 0,
  late: 0,
  oldAnswers: 0,
  broken: 0,
}

const SILENCE_MS = 30_000

export interface NetworkDeps {
  readonly scheduler: Scheduler
  readonly random: Random
  /** Undefined: no response. */
  readonly deliver: (request: HttpRequest) => Promise<HttpAnswer | undefined>
  readonly note: (what: string) => void
  readonly onFault: (kind: string) => void
}

const REFUSAL: HttpAnswer = {
  status: 422,
  headers: {},
  body: JSON.stringify({ message: 'The segment cannot be read.', code: 'SEGMENT_REJECTED' }),
}

export class Network {
  readonly #deps: NetworkDeps
  weather: Weather = CALM
  /** Cut, per direction. */
  cutUp = false
  cutDown = false
  /** An older cloud, or a proxy, cannot read this device's segments. */
  refusesSegments = false
  /** Responses of a newer version contain unknown fields. */
  isTwinNewer = false
  /** Recorded responses for replays, by request. */
  readonly #kept = new Map<string, HttpAnswer[]>()

  constructor(deps: NetworkDeps) {
    this.#deps = deps
  }

  heal(): void {
    this.weather = CALM
    this.cutUp = false
    this.cutDown = false
    this.refusesSegments = false
    this.isTwinNewer = false
  }

  /** For one process: messages after its end are dropped. @param alive whether it still runs */
  exchange(alive: () => boolean): HttpExchange {
    return (request) => this.#exchange(request, alive)
  }

  #exchange(request: HttpRequest, alive: () => boolean): Promise<HttpAnswer> {
    const { scheduler, random, note, onFault } = this.#deps
    const what = `${request.method} ${pathOf(request)}`
    return new Promise((resolve, reject) => {
      const cancel = scheduler.at(scheduler.now + SILENCE_MS, () => end('ETIMEDOUT'))
      let open = true
      const close = (): boolean => {
        const was = open && alive()
        open = false
        cancel()
        return was
      }
      const end = (network: string): void => {
        if (!close()) return
        note(`${what} fails: ${network}`)
        reject(new CodedError('CLOUD_UNREACHABLE', 'The cloud does not answer.', { details: { network } }))
      }
      request.signal.addEventListener('abort', () => end('ABORTED'), { once: true })
      const answered = (answer: HttpAnswer): void => {
        if (!close()) return
        note(`${what} is answered ${answer.status}`)
        resolve(answer)
      }
      if (random.chance(this.weather.broken)) {
        onFault('connection broken')
        scheduler.at(scheduler.now + this.#delay(), () => end('ECONNRESET'))
        if (random.chance(0.5)) return
      }
      note(`${what} sent`)
      const copies = random.chance(this.weather.repeated) ? 2 : 1
      if (copies > 1) onFault('message repeated')
      for (let copy = 0; copy < copies; copy += 1) this.#send(request, what, answered)
    })
  }

  #send(request: HttpRequest, what: string, answered: (answer: HttpAnswer) => void): void {
    const { scheduler, random, deliver, onFault } = this.#deps
    if (random.chance(this.weather.requestsLost)) {
      onFault('request lost')
      return
    }
    scheduler.at(scheduler.now + this.#delay(), () => {
      if (this.cutUp) {
        onFault('request cut off')
        return
      }
      if (this.refusesSegments && what.endsWith('/sync')) {
        onFault('segment refused with 422')
        this.#sendBack(what, REFUSAL, answered)
        return
      }
      void deliver(request).then((answer) => {
        if (answer !== undefined) this.#sendBack(what, this.isTwinNewer ? newer(answer) : answer, answered)
      })
    })
  }

  #sendBack(what: string, answer: HttpAnswer, answered: (answer: HttpAnswer) => void): void {
    const { scheduler, random, onFault } = this.#deps
    const kept = this.#kept.get(what) ?? []
    this.#kept.set(what, [...kept, answer].slice(-8))
    if (random.chance(this.weather.answersLost)) {
      onFault('answer lost')
      return
    }
    let shown = answer
    if (kept.length > 0 && random.chance(this.weather.oldAnswers)) {
      onFault('old answer shown again')
      shown = random.pick(kept)
    }
    scheduler.at(scheduler.now + this.#delay(), () => {
      if (this.cutDown) onFault('answer cut off')
      else answered(shown)
    })
  }

  #delay(): number {
    const { random, onFault } = this.#deps
    const { delayMax, late, lateMax } = this.weather
    if (!random.chance(late)) return random.whole(1, delayMax)
    onFault('message late')
    return random.spread(delayMax, lateMax)
  }
}

/** Without ids of devices and sessions. */
function pathOf({ url }: Pick<HttpRequest, 'url'>): string {
  return new URL(url).pathname
}

/** Adds fields as a later version might. */
function newer(answer: HttpAnswer): HttpAnswer {
  if (answer.status !== 200 || !answer.body.startsWith('{')) return answer
  const body = JSON.parse(answer.body) as Record<string, unknown>
  return { ...answer, body: JSON.stringify({ ...body, ofALaterVersion: { known: false } }) }
}
