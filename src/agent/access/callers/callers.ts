/**
 * Authorizes callers of the socket, by the identity that the kernel reports. `use`: access requests and own sessions.
 * Root and the agent's user have every role because they own its state.
 */
import { counted } from '../../../core/accounts/in-words.ts'
import { type Micro, wholeTokens } from '../../../core/pricing/amount.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { Bucket } from '../../runtime/bucket.ts'
import { type Names, type CallerSelector, invalid, parseCallerSelector } from './caller-selector.ts'

export interface Caller {
  readonly uid: number
  readonly gids: readonly number[]
  readonly pid: number
}

export function callerName({ uid }: Pick<Caller, 'uid'>): string {
  return `uid:${uid}`
}

export type CallerRole = 'use' | 'observe' | 'administer'

export interface CallerSettings {
  readonly use: string
  readonly observe: string
  readonly administer: string
  readonly limits: string | null
}

/** Of one user under one limit: shared by all its connections that this limit is the first to name. */
export interface CallerQuota {
  readonly key: string
  readonly connectionsMax: number | null
  /** @throws CodedError CALLER_LIMITED, CALLER_NOT_ALLOWED */
  request(requester: { readonly type: string; readonly value: string }): void
  /**
   * A new session is a request too. @param live sessions of the caller.
   * @throws CodedError CALLER_LIMITED, CALLER_NOT_ALLOWED, SESSIONS_LIMITED
   */
  open(live: number): void
  /**
   * @throws CodedError CALLER_LIMITED while the budget is too small, CALLER_NOT_ALLOWED if it always will be; nothing is
   * taken then
   */
  spend(tokens: Micro): void
  unspend(tokens: Micro): void
  /** Counts an automatic charge; never refuses it. */
  charged(tokens: Micro): void
}

interface Limit {
  readonly who: CallerSelector
  readonly tokensPerHour: number | null
  readonly requestsPerSecond: number | null
  readonly connections: number | null
  readonly sessions: number | null
  readonly requester: { readonly type: string; readonly value: string } | null
}

const HOUR_MS = 60 * 60 * 1000
const SECOND_MS = 1_000

export class Callers {
  readonly #names: Names
  #rules: Rules
  readonly #ownUid: number
  readonly #sinceBoot: () => number
  #budgets: Budgets

  /** @throws CodedError CONFIG_INVALID */
  constructor(settings: CallerSettings, names: Names, ownUid: number, sinceBoot: () => number) {
    this.#names = names
    this.#rules = parseRules(settings, names)
    this.#ownUid = ownUid
    this.#sinceBoot = sinceBoot
    this.#budgets = new Budgets(sinceBoot)
  }

  /** The result puts the rules in force; budgets survive unless the limits change. @throws CodedError CONFIG_INVALID */
  prepare(settings: CallerSettings): () => void {
    const rules = parseRules(settings, this.#names)
    return () => {
      if (rules.limitsText !== this.#rules.limitsText) this.#budgets = new Budgets(this.#sinceBoot)
      this.#rules = rules
    }
  }

  isIn(caller: Caller, role: CallerRole): boolean {
    return caller.uid === 0 || caller.uid === this.#ownUid || this.#rules.selectors[role](caller)
  }

  /** @throws CodedError CALLER_NOT_ALLOWED */
  require(caller: Caller, role: CallerRole): void {
    if (this.isIn(caller, role)) return
    throw new CodedError('CALLER_NOT_ALLOWED', `${callerName(caller)} may not ${role} this agent`, {
      details: { uid: caller.uid, pid: caller.pid, role },
    })
  }

  /** By the first limit that names the caller; undefined: unlimited. */
  quotaOf(caller: Caller | Pick<Caller, 'uid' | 'gids'>): CallerQuota | undefined {
    const { limits } = this.#rules
    // Not by `findIndex`: the element at -1 would be looked up by its name.
    const limit = limits.find(({ who }) => who(caller))
    if (limit === undefined) return undefined
    const index = limits.indexOf(limit)
    const name = callerName(caller)
    return new LimitedCaller({ key: `${name} ${index}`, name }, limit, this.#budgets)
  }

  /** Of a session's owner that has made no request in it since the start: its groups are unknown. */
  quotaOfOwner(owner: string | null): CallerQuota | undefined {
    const [, uid] = /^uid:(\d+)$/.exec(owner ?? '') ?? []
    return uid === undefined ? undefined : this.quotaOf({ uid: Number(uid), gids: [] })
  }
}

interface Budget {
  readonly tokens: Bucket | null
  readonly requests: Bucket | null
}

/** Quotas that are partly used up. A full one is the same as a new one, so only full ones are dropped. */
const BUDGETS_MAX = 10_000

class Budgets {
  readonly sinceBoot: () => number
  readonly #budgets = new Map<string, Budget>()
  /** Boot-time reading, ms, before which none is full. */
  #fullFrom = 0

  constructor(sinceBoot: () => number) {
    this.sinceBoot = sinceBoot
  }

  find(key: string): Budget | undefined {
    return this.#budgets.get(key)
  }

  /** @throws CodedError CALLER_LIMITED while too many other callers have used up part of theirs */
  use(key: string, limit: Limit): Budget {
    const known = this.#budgets.get(key)
    if (known !== undefined) return known
    if (this.#budgets.size >= BUDGETS_MAX) this.#dropFull()
    if (this.#budgets.size < BUDGETS_MAX) return this.add(key, limit)
    const message = `${BUDGETS_MAX} other callers have used up part of their quotas: no more can be counted`
    const retryAfterMs = Math.max(1, Math.ceil(this.#fullFrom - this.sinceBoot()))
    throw new CodedError('CALLER_LIMITED', message, { details: { retryAfterMs } })
  }

  add(key: string, { tokensPerHour, requestsPerSecond }: Limit): Budget {
    const now = this.sinceBoot()
    const budget = {
      tokens: tokensPerHour === null ? null : new Bucket(wholeTokens(tokensPerHour), HOUR_MS, now),
      requests: requestsPerSecond === null ? null : new Bucket(BigInt(requestsPerSecond), SECOND_MS, now),
    }
    this.#budgets.set(key, budget)
    this.#fullFrom = 0
    return budget
  }

  #dropFull(): void {
    const now = this.sinceBoot()
    if (now < this.#fullFrom) return
    this.#fullFrom = Infinity
    for (const [key, { tokens, requests }] of this.#budgets) {
      const fullInMs = Math.max(tokens?.fullInMs(now) ?? 0, requests?.fullInMs(now) ?? 0)
      if (fullInMs === 0) this.#budgets.delete(key)
      else this.#fullFrom = Math.min(this.#fullFrom, now + fullInMs)
    }
  }
}

class LimitedCaller implements CallerQuota {
  readonly key: string
  readonly connectionsMax: number | null
  readonly #name: string
  readonly #limit: Limit
  readonly #budgets: Budgets

  constructor({ key, name }: { readonly key: string; readonly name: string }, limit: Limit, budgets: Budgets) {
    this.key = key
    this.connectionsMax = limit.connections
    this.#name = name
    this.#limit = limit
    this.#budgets = budgets
  }

  request({ type, value }: { readonly type: string; readonly value: string }): void {
    const { requester } = this.#limit
    if (requester !== null && (requester.type !== type || requester.value !== value)) {
      const only = `${requester.type}:${requester.value}`
      throw new CodedError('CALLER_NOT_ALLOWED', `${this.#name} may ask for the requester ${only} only`)
    }
    this.#pace()
  }

  open(live: number): void {
    const { sessions } = this.#limit
    if (sessions !== null && live >= sessions) {
      throw new CodedError(
        'SESSIONS_LIMITED',
        `${this.#name} may have ${counted(sessions, 'open session', 'open sessions')}`,
      )
    }
    this.#pace()
  }

  #pace(): void {
    const { requestsPerSecond } = this.#limit
    if (requestsPerSecond === null) return
    if (this.#budgets.use(this.key, this.#limit).requests?.take(1n, this.#budgets.sinceBoot()) !== false) return
    throw new CodedError(
      requestsPerSecond === 0 ? 'CALLER_NOT_ALLOWED' : 'CALLER_LIMITED',
      `${this.#name} may make ${counted(requestsPerSecond, 'request', 'requests')} per second`,
    )
  }

  spend(tokens: Micro): void {
    const { tokensPerHour } = this.#limit
    if (tokensPerHour === null || tokens === 0n) return
    const message = `${this.#name} may spend ${counted(tokensPerHour, 'token', 'tokens')} per hour`
    if (tokens > wholeTokens(tokensPerHour)) {
      throw new CodedError('CALLER_NOT_ALLOWED', `${message}, which is less than this request costs`)
    }
    const bucket = this.#budgets.use(this.key, this.#limit).tokens
    const now = this.#budgets.sinceBoot()
    if (bucket === null || bucket.take(tokens, now)) return
    throw new CodedError('CALLER_LIMITED', message, { details: { retryAfterMs: bucket.waitFor(tokens, now) } })
  }

  unspend(tokens: Micro): void {
    this.#budgets.find(this.key)?.tokens?.give(tokens)
  }

  charged(tokens: Micro): void {
    if (this.#limit.tokensPerHour === null || tokens === 0n) return
    const budget = this.#budgets.find(this.key) ?? this.#budgets.add(this.key, this.#limit)
    budget.tokens?.owe(tokens, this.#budgets.sinceBoot())
  }
}

interface Rules {
  readonly selectors: Readonly<Record<CallerRole, CallerSelector>>
  readonly limits: readonly Limit[]
  readonly limitsText: string | null
}

function parseRules(settings: CallerSettings, names: Names): Rules {
  return {
    selectors: {
      use: parseCallerSelector('callers.use', settings.use, names),
      observe: parseCallerSelector('callers.observe', settings.observe, names),
      administer: parseCallerSelector('callers.administer', settings.administer, names),
    },
    limits: settings.limits === null ? [] : settings.limits.split(';').map((text) => parseLimit(text, names)),
    limitsText: settings.limits,
  }
}

const TERM =
  /^(\d{1,12}) tokens\/h$|^(\d{1,6}) requests\/s$|^(\d{1,6}) connections$|^(\d{1,6}) sessions$|^as ([^\s:]+):(\S+)$/

/** `user:hmi = 500 tokens/h, 20 requests/s, 8 connections, 10 sessions, as machine:press-4` */
function parseLimit(text: string, names: Names): Limit {
  const [who = '', terms, ...rest] = text.split('=').map((part) => part.trim())
  if (terms === undefined || rest.length > 0) throw badLimit(text)
  let limit: Limit = {
    who: parseCallerSelector('callers.limits', who, names),
    tokensPerHour: null,
    requestsPerSecond: null,
    connections: null,
    sessions: null,
    requester: null,
  }
  for (const term of terms.split(',')) {
    const [match, tokens, requests, connections, sessions, type, value] = TERM.exec(term.trim()) ?? []
    if (match === undefined) throw badLimit(text)
    if (tokens !== undefined) limit = { ...limit, tokensPerHour: Number(tokens) }
    else if (requests !== undefined) limit = { ...limit, requestsPerSecond: Number(requests) }
    else if (connections !== undefined) limit = { ...limit, connections: Number(connections) }
    else if (sessions !== undefined) limit = { ...limit, sessions: Number(sessions) }
    else limit = { ...limit, requester: { type: type ?? '', value: value ?? '' } }
  }
  return limit
}

function badLimit(text: string): CodedError {
  const example = 'user:hmi = 500 tokens/h, 20 requests/s, 8 connections, 10 sessions, as machine:press-4'
  return invalid('callers.limits', `${JSON.stringify(text.trim())} does not read like "${example}"`)
}
