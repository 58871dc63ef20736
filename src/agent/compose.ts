/**
 * The composition root of the agent: the one place that names the concrete adapters. It starts what the settings ask for,
 * in an order in which nothing answers before it can, and ends it in the reverse one.
 */
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Logger, pino } from 'pino'
import { wholeTokens } from '../core/amount.ts'
import { CodedError } from '../protocol/errors.ts'
import { signDocument } from '../protocol/signing.ts'
import { createCloudHttp } from './adapters/cloud-http/cloud-http.ts'
import { EXCHANGE_DEFAULTS, type HttpExchange, createExchange } from './adapters/cloud-http/exchange.ts'
import { openKeyFile } from './adapters/key-file/key-file.ts'
import { MQTT_DEFAULTS, createMqttPush } from './adapters/mqtt/mqtt-push.ts'
import { openSocket } from './adapters/socket/server.ts'
import { openJournal } from './adapters/sqlite/journal.ts'
import { systemRandomness } from './adapters/system/randomness.ts'
import { openTimeSource } from './adapters/system/time-source.ts'
import { pause, systemTimers } from './adapters/system/timers.ts'
import { Access } from './app/access.ts'
import { Clock, type TimeSource } from './app/clock.ts'
import type { Journal } from './app/journal.ts'
import { LastAnswers } from './app/last-answers.ts'
import { Ledger } from './app/ledger.ts'
import type { DeviceKey } from './app/link/device-key.ts'
import { DeviceTokens } from './app/link/device-token.ts'
import type { LinkOptions } from './app/link/limits.ts'
import { type Link, createLink } from './app/link/link.ts'
import type { Timers } from './app/link/ports.ts'
import type { Push } from './app/link/push.ts'
import { PolicyBoard } from './app/policy-board.ts'
import { statusOf } from './app/status.ts'
import { WatchedJournal } from './app/watched-journal.ts'
import { Ending } from './ending.ts'
import type { AgentSettings } from './settings.ts'

/** What a test or an embedding program puts in the place of the real thing. */
export interface Overrides {
  readonly log?: Logger
  readonly time?: TimeSource
  readonly timers?: Timers
  /** The way to the cloud. */
  readonly exchange?: HttpExchange
  /** Null: no push. */
  readonly push?: Push | null
}

export interface Agent {
  readonly socketPath: string
  readonly link: Pick<Link, 'wake' | 'status'>
  /**
   * Resolves after {@link Agent.stop}; rejects when the agent had to end by itself, after it has let go of everything. A
   * CodedError then says why.
   */
  readonly ended: Promise<void>
  /** Takes no more requests, finishes and records those under way, says goodbye to the cloud, and ends. Idempotent. */
  stop(): Promise<void>
}

const PAGE_BYTES = 4096

/** Between two writes of the clock by an agent that writes nothing else. */
const CLOCK_EVERY_MS = 60_000

/**
 * @throws CodedError when the state, the key or the socket cannot be used; a cloud that is out of reach is no reason
 */
export async function composeAgent(settings: AgentSettings, overrides: Overrides = {}): Promise<Agent> {
  await using started = new AsyncDisposableStack()
  const log = overrides.log ?? pino({ level: settings.log.level, base: null })
  const timers = overrides.timers ?? systemTimers
  const time = overrides.time ?? started.adopt(openTimeSource(), (opened) => opened.close())
  const ending = new Ending(log)
  const onFatal = (error: unknown): void => ending.fail(error)

  // The journal is opened first: it makes the state directory, and keeps a second agent away from it.
  const late: { key?: DeviceKey; clock?: Clock } = {}
  const journal = await openJournal({
    path: join(settings.state.directory, 'journal.db'),
    limits: {
      pagesMax: Math.floor(settings.state.ledgerMax / PAGE_BYTES),
      slackPages: Math.floor(settings.state.slack / PAGE_BYTES),
      retentionMs: settings.state.retention,
      retainedBytesMax: settings.state.retainedMax,
      answersMax: settings.state.answersMax,
    },
    sign: async (payload) => {
      if (late.key === undefined) throw new Error('invariant: nothing is sealed before the key is there')
      return signDocument('segment', payload, late.key.signer)
    },
    now: () => late.clock?.reading().now ?? time.wall(),
    onBroken: onFatal,
  })
  started.defer(() => journal.close())
  const key = await openKeyFile({
    path: settings.device.keyFile ?? join(settings.state.directory, 'device.key'),
    create: settings.device.keyFile === null,
  })
  late.key = key

  const snapshot = await journal.read()
  const clock = new Clock(time, snapshot.clock)
  late.clock = clock
  const policies = new PolicyBoard()
  const watched = new WatchedJournal(journal, () => clock.reading().now, log)
  const ledger = new Ledger(
    {
      journal: watched,
      clock,
      policies,
      startingGrant: wholeTokens(settings.grants.starting),
      batchEntries: settings.sync.batch,
      soon: setImmediate,
      onNeed: () => link.wake('low-water'),
      onFatal,
    },
    snapshot,
  )

  const extraCa = settings.tls.caFile === null ? null : readCa(settings.tls.caFile)
  const network = createExchange({ ...EXCHANGE_DEFAULTS, extraCa })
  started.defer(() => network.close())
  const exchange = overrides.exchange ?? network.exchange
  const tokens = new DeviceTokens(key, clock)
  const fraction = (): number => systemRandomness.fraction()
  const cloud = createCloudHttp({ exchange, tokens, pause, fraction })
  const version = softwareVersion()
  const link = await createLink({
    journal,
    ledger,
    board: policies,
    clock,
    randomness: systemRandomness,
    cloud,
    key,
    enrollmentToken: async () => settings.enrollment.token?.reveal() ?? null,
    log,
    options: linkOptions(settings, version),
    snapshot,
    timers,
    tokens,
    push: pushOf(settings, overrides, extraCa, log),
    onFatal,
  })
  started.defer(() => link.stop())

  const access = new Access({
    ledger,
    policies,
    lastAnswers: new LastAnswers(snapshot.lastAnswers, settings.state.answersMax),
    clock,
    topUps: link,
    topUpDeadlineMs: settings.grants.topUpDeadline,
    newId: randomUUID,
  })
  const statusParts = { version, startedAt: clock.reading().now, ledger, link, clock, journal: watched }
  await link.start()
  const socket = await openSocket({
    path: settings.socket.path,
    mode: Number.parseInt(settings.socket.mode, 8),
    bodyBytesMax: settings.socket.bodyMax,
    waitingMax: settings.socket.waitingMax,
    connectionsMax: settings.socket.connectionsMax,
    requestTimeoutMs: settings.socket.requestTimeout,
    access: (call) => access.request(call),
    status: () => statusOf(statusParts),
    onFault: (error) => log.error({ err: error }, 'a request met a fault'),
  })
  const stopClock = keepClock(watched, ledger, timers)

  const parts = started.move()
  ending.begin({
    drain: async () => {
      await socket.stop(settings.socket.drainTimeout)
      await ledger.settled()
      await watched.saveClock(ledger.stamp())
    },
    abandon: () => socket.stop(0),
    release: async () => {
      stopClock()
      await parts.disposeAsync()
    },
  })
  log.info({ socket: settings.socket.path, state: settings.state.directory, version }, 'listening')
  return { socketPath: settings.socket.path, link, ended: ending.ended, stop: () => ending.stop() }
}

/** Writes the clock when nothing else has for a while. Returns what ends it. */
function keepClock(journal: Pick<Journal, 'saveClock'>, ledger: Ledger, timers: Timers): () => void {
  let cancel: () => void = () => undefined
  let lastEntry = ledger.lastEntry()
  const next = (): void => {
    cancel = timers.after(CLOCK_EVERY_MS, () => {
      const isIdle = ledger.lastEntry() === lastEntry
      lastEntry = ledger.lastEntry()
      next()
      if (!isIdle) return
      // A journal that takes nothing says so itself; the next time comes soon.
      journal.saveClock(ledger.stamp()).catch(() => undefined)
    })
  }
  next()
  return () => cancel()
}

function linkOptions({ sync, grants }: AgentSettings, version: string): LinkOptions {
  return {
    syncEveryMs: sync.interval,
    heartbeatEveryMs: sync.heartbeat,
    sessionCheckEveryMs: sync.sessionCheck,
    batchEntries: sync.batch,
    backoffBaseMs: sync.backoffMin,
    backoffCapMs: sync.backoffMax,
    returnRoomOnStop: grants.returnOnStop,
    stopTimeoutMs: sync.stopTimeout,
    software: `tallygate ${version}`,
  }
}

function pushOf(settings: AgentSettings, overrides: Overrides, extraCa: string | null, log: Logger): Push | null {
  if (overrides.push !== undefined) return overrides.push
  if (!settings.push.enabled) return null
  const fraction = (): number => systemRandomness.fraction()
  const now = (): number => performance.now()
  return createMqttPush({ ...MQTT_DEFAULTS, extraCa, pause, fraction, now, log })
}

function readCa(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (cause) {
    throw new CodedError('CONFIG_UNREADABLE', `tls.ca_file: ${path} cannot be read`, { cause })
  }
}

function softwareVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8')
  return (JSON.parse(text) as { version: string }).version
}
