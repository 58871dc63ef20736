import pg from 'pg'
import { afterAll } from 'vitest'
import { type PostgresStore, openPostgresStore } from '../../src/cloud/storage/postgres/store.ts'
import { EMPTY_TABLES, PostgresSchema } from './postgres-schema.ts'

/**
 * Nodes over one database, for the tests of a file. Their connections stay open from test to test: to open one takes longer than
 * many a test.
 */
export class PostgresNodes {
  readonly #server: { readonly url: string }
  #schema: PostgresSchema | undefined
  #sweeper: pg.Client | undefined
  readonly #stores: PostgresStore[] = []
  #taken = 0

  /** @param server its user may make schemas */
  constructor(server: { readonly url: string }) {
    this.#server = server
    afterAll(async () => {
      await Promise.all(this.#stores.map((store) => store.close()))
      await this.#sweeper?.end()
      await this.#schema?.[Symbol.asyncDispose]()
    })
  }

  /** A node over an empty database. Those of earlier tests are done. */
  async first(): Promise<PostgresStore> {
    this.#taken = 0
    const store = await this.another()
    this.#sweeper ??= await this.#connect()
    await this.#sweeper.query(EMPTY_TABLES)
    return store
  }

  /** One more node over the same database. */
  async another(): Promise<PostgresStore> {
    const store = this.#stores[this.#taken] ?? (await this.#open())
    this.#stores[this.#taken] = store
    this.#taken += 1
    return { ...store, close: async () => undefined }
  }

  /** Of the database, once it has a node. */
  get url(): string {
    if (this.#schema === undefined) throw new Error('no node yet')
    return this.#schema.url
  }

  async #open(): Promise<PostgresStore> {
    this.#schema ??= await PostgresSchema.create(this.#server.url)
    return openPostgresStore({ url: this.url, onConnectionLost: () => undefined })
  }

  async #connect(): Promise<pg.Client> {
    const client = new pg.Client({ connectionString: this.url })
    await client.connect()
    return client
  }
}
