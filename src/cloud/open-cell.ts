/** The database of a cell, or of the whole cloud: opened, claimed, and compared with its sales mark. */
import { createPublicKey } from 'node:crypto'
import { existsSync, renameSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { readSettingFile } from '../platform/read-setting-file.ts'
import { CodedError } from '../protocol/errors.ts'
import { thumbprint } from '../protocol/signing.ts'
import type { CellSettings } from './cells/cell-settings.ts'
import { CellStore } from './cells/cell-store.ts'
import { claimCell, registerName, requireAllCells, requireNoCell, requireNotLost } from './cells/claim-cell.ts'
import { claimSigningKey } from './devices/claim-signing-key.ts'
import { announcePools } from './events/announce-pools.ts'
import { openKeyFile } from './platform/key-file/key-file.ts'
import { openKeyring } from './platform/key-file/keyring-file.ts'
import { Metrics } from './platform/metrics/metrics.ts'
import { openMarkFile } from './platform/system/mark-file.ts'
import { Policies } from './policy/load-policy.ts'
import { ClockGuard, type Clocks } from './runtime/clock-guard.ts'
import { registerFirstKey } from './service-api/change-keys.ts'
import type { CloudSettings } from './settings.ts'
import { type PostgresStore, openPostgresStore } from './storage/postgres/store.ts'
import { hasData } from './storage/sqlite/read-tables.ts'
import { openSqliteStore } from './storage/sqlite/store.ts'
import type { Store } from './storage/store.ts'
import { watchStore } from './storage/watch-store.ts'
import { Sales } from './sync/recovery/sales.ts'

/** What all cells of a node share. */
export interface CellNode {
  readonly settings: CloudSettings
  readonly log: Logger
  readonly now: () => number
  readonly newId: () => string
  readonly clocks: Clocks
  readonly requestsInProgress: () => number
  readonly pause?: ((ms: number) => Promise<unknown>) | undefined
  /** Called when the node must end. */
  readonly fail: (error: unknown) => void
  readonly administrationKeyFile: string
  readonly signingKeyFile: string
  /** What the control cell has given to all cells; null: it has not responded yet. */
  cloud: { readonly id: string; readonly store: Store } | null
  readonly metricsDeps: Omit<ConstructorParameters<typeof Metrics>[0], 'totals' | 'paused' | 'part'>
}

export class Cell {
  readonly name: string
  readonly store: CellStore
  readonly policies: Policies
  readonly metrics: Metrics
  readonly clock: ClockGuard
  /** Whether rate tables, keys and configuration are changed here. */
  readonly isControl: boolean
  /** Whether it gets new accounts. */
  readonly isOpen: boolean
  /** Null: the cloud has no cells. */
  readonly #place: CellSettings | null
  readonly #node: CellNode
  /** For log lines. */
  readonly #field: { readonly cell?: string }
  #running:
    { readonly sales: Sales; readonly database: PostgresStore; readonly parts: AsyncDisposableStack } | undefined
  #starting: Promise<void> | undefined
  readonly #cut = Promise.withResolvers<never>()
  /** Thumbprint of the signing key that its database knows. */
  signingKey = ''
  isSettlementPaused = false

  constructor(node: CellNode, place: CellSettings | null, isControl: boolean) {
    const { settings, log, metricsDeps, clocks } = node
    this.#cut.promise.catch(() => undefined)
    this.#node = node
    this.#place = place
    this.#field = place === null ? {} : { cell: place.name }
    this.name = place?.name ?? ''
    this.isControl = isControl
    this.isOpen = place?.new_accounts ?? true
    this.store = new CellStore(place?.name ?? null)
    this.policies = new Policies({ max: settings.policy.cacheMax, undecidedClock: settings.policy.undecidedClock })
    this.clock = new ClockGuard({ store: this.store, clocks, log, settleAfterMs: () => settings.edge.settleAfter })
    this.metrics = new Metrics({
      ...metricsDeps,
      totals: () => this.store.read((reader) => reader.totals()),
      paused: () => this.paused(),
      ...(place === null ? {} : { part: { cell: place.name } }),
    })
  }

  get isStarted(): boolean {
    return this.#running !== undefined
  }

  /** Undefined: the database has not responded yet. */
  get sales(): Sales | undefined {
    return this.#running?.sales
  }

  /** Another number when registered keys must be read again. Null: the database has not responded yet. */
  readonly keysVersion = (): number | null => this.#running?.database.keysVersion() ?? null

  readonly paused = () => [
    ...(this.clock.doubt === null ? [] : [this.clock.doubt.code]),
    ...(this.isSettlementPaused ? (['SETTLEMENT_TOO_LARGE'] as const) : []),
  ]

  /** One attempt. @throws CodedError when the store or a key cannot be used */
  async start(): Promise<void> {
    if (this.isStarted) return
    this.#starting ??= this.#start().finally(() => (this.#starting = undefined))
    await Promise.race([this.#starting, this.#cut.promise])
  }

  async #start(): Promise<void> {
    const { settings, now, newId, pause = sleep, log, fail, administrationKeyFile } = this.#node
    if (!this.isControl && !existsSync(this.#node.signingKeyFile)) {
      throw new CodedError('DATABASE_UNREACHABLE', 'The first start of a node requires the first cell.')
    }
    await using opened = new AsyncDisposableStack()
    const database = await this.#openStore()
    opened.defer(() => database.close())
    // After a cut, nothing more is read or written.
    void this.#cut.promise.catch(() => database.cut())
    if (this.isControl) await requireMigrated(settings, database)
    await this.#claimCell(database)
    if (this.isControl) await giveFirstKey(database, administrationKeyFile, log, now())
    await this.#claim(database)
    const markFile = openMarkFile(this.#markPath(settings.store.path))
    opened.defer(() => markFile.close())
    const sales = new Sales({
      store: database,
      file: markFile,
      policies: this.policies,
      shared: isShared(settings),
      restored: this.#place?.restored ?? settings.store.restored,
      now,
      newId,
      pause,
      onRecovery: (reason) =>
        log.warn({ ...this.#field, code: 'STORE_RESTORED', reason }, 'the store comes from a backup: recovery begins'),
      onBroken: fail,
    })
    // Before the first client: nothing sold after the backup may be sold again.
    await sales.start()
    opened.defer(() => sales.close())
    const poolTerms = { lowPercent: () => settings.events.lowPercent, now }
    this.store.attach(watchStore(announcePools(sales.store, poolTerms), this.metrics, () => performance.now()))
    try {
      await this.clock.look()
    } catch (error) {
      this.store.detach()
      throw error
    }
    this.#running = { sales, database, parts: opened.move() }
  }

  async #claimCell(database: Store): Promise<void> {
    const { name, isControl } = this
    const { cloud, newId, settings } = this.#node
    if (this.#place === null) await requireNoCell(database)
    else if (isControl) {
      const id = await claimCell(database, { name, isControl, cloudId: newId() })
      await requireAllCells(database, settings.cells?.map((each) => each.name) ?? [])
      this.#node.cloud = { id, store: database }
    } else {
      if (cloud !== null && this.#place.restored !== true) await requireNotLost(cloud.store, database, name)
      await claimCell(database, { name, isControl, cloudId: cloud?.id ?? null })
      if (cloud !== null) await registerName(cloud.store, name)
    }
  }

  async #openStore(): Promise<PostgresStore> {
    const { settings, log, fail, requestsInProgress } = this.#node
    const { db, dbPassword, dbStandby, store } = settings
    const url = this.#place?.url ?? db
    if (url === null) {
      const file = { path: join(store.path, 'twin.db'), check: store.check, onBroken: fail, requestsInProgress }
      // A file responds.
      return { ...openSqliteStore(file), keepPartitions: nothing, renewStatistics: nothing, cut: () => undefined }
    }
    const file = this.#place?.password_file
    return openPostgresStore({
      url,
      password: file === undefined ? (dbPassword?.reveal() ?? null) : readSettingFile('cells', file).trim(),
      requiresStandby: dbStandby,
      onRerun: (error) => log.debug({ err: error }, 'a transaction starts over'),
      onConnectionLost: (error) => log.warn({ ...this.#field, err: error }, 'a connection to the database was lost'),
      onConnectionRegained: (server) => log.warn({ ...this.#field, server }, 'connected to the database again'),
    })
  }

  /** A cloud that gets cells keeps the mark of its database, which becomes the control cell. */
  #markPath(directory: string): string {
    const path = join(directory, 'sales.mark')
    if (this.#place === null) return path
    const own = join(directory, `sales-${this.name}.mark`)
    if (this.isControl && existsSync(path) && !existsSync(own)) renameSync(path, own)
    return own
  }

  /** Registers the signing key of the node. @throws CodedError SIGNING_KEY_DIFFERS, KEY_UNUSABLE, STATE_UNWRITABLE */
  async claimSigningKey(): Promise<void> {
    await this.#claim(this.store)
  }

  async #claim(store: Store): Promise<void> {
    const { signingKeyFile: path, settings, now } = this.#node
    const file = {
      path,
      exists: () => existsSync(path),
      open: async () => {
        const { signer, succeeded } = await openKeyring(path)
        return { keyId: signer.keyId, succeeded }
      },
    }
    await claimSigningKey(store, file, settings.keys.replaceSigning, now())
    this.signingKey = (await openKeyring(path)).signer.keyId
  }

  /** Makes partitions of the usage in advance, and drops archived ones. */
  async keepPartitions(): Promise<void> {
    await this.#running?.database.keepPartitions()
  }

  /** Renews the statistics of tables that have grown. */
  async renewStatistics(): Promise<void> {
    await this.#running?.database.renewStatistics()
  }

  /** Cuts what does not respond, because the time for a stop is over. */
  cut(): void {
    this.#cut.reject(new CodedError('STOPPING', 'The cloud stops, and the database of a cell does not respond.'))
  }

  async stop(): Promise<void> {
    await Promise.race([this.#starting, this.#cut.promise]).catch(() => undefined)
    await this.#running?.parts.disposeAsync()
  }
}

const nothing = async (): Promise<void> => undefined

export function isShared({ db, cells }: Pick<CloudSettings, 'db' | 'cells'>): boolean {
  return db !== null || cells !== null
}

/** @throws CodedError STORE_NOT_MIGRATED if the data of this cloud is in its directory, and not in its database */
async function requireMigrated(settings: CloudSettings, store: Store): Promise<void> {
  const { path, startEmpty } = settings.store
  const file = join(path, 'twin.db')
  if (!isShared(settings) || startEmpty || !hasData(file)) return
  // Every cloud that has started has registered a key.
  if ((await store.read((reader) => reader.keys.countAdministration())) > 0) return
  throw new CodedError('STORE_NOT_MIGRATED', `The PostgreSQL database is empty, but ${file} contains data.`)
}

async function giveFirstKey(store: Store, path: string, log: Logger, now: number): Promise<void> {
  const keyId = await registerFirstKey(
    store,
    async () => {
      const publicKey = createPublicKey(openKeyFile(path))
      const id = await thumbprint(publicKey.export({ format: 'jwk' }))
      return { id, pem: publicKey.export({ type: 'spki', format: 'pem' }) }
    },
    now,
  )
  if (keyId !== undefined) log.info({ path, keyId }, 'the first administration key was made')
}
