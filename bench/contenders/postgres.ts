/** An installed PostgreSQL with flushes, and the debit as a function. */
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { ask, startInstalled } from '../cloud/postgres-server.ts'
import type { Contender } from './contender.ts'

const FUNDS = 9_000_000_000_000_000

/** @param entryBytes text of one ledger record */
export function postgres(binary: string, entryBytes: number): Contender {
  return {
    name: 'postgresql',
    async start({ directory, socketPath }) {
      const sockets = dirname(socketPath)
      const server = await startInstalled(binary, directory, sockets)
      if (typeof server === 'string') throw new Error(server)
      const { url, pid, port, stop } = server
      await ask(url, readFileSync(new URL('./postgres-debit.sql', import.meta.url), 'utf8'))
      return {
        target: {
          protocol: 'postgres',
          socketPath: join(sockets, `.s.PGSQL.${port}`),
          user: 'bench',
          database: 'postgres',
          prepare: `PREPARE debit AS SELECT debit(1, '${'e'.repeat(entryBytes)}')`,
          statement: 'EXECUTE debit',
          grantAnswer: '1',
        },
        pid,
        async killAndCount() {
          const [counts] = await ask<{ entries: string; wrong: string }>(
            url,
            `SELECT count(*) AS entries,
               (SELECT count(*) FROM account WHERE ${FUNDS} - available <> (SELECT count(*) FROM ledger)) AS wrong
               FROM ledger`,
          )
          await stop()
          if (counts?.wrong !== '0') throw new Error('the balances of PostgreSQL disagree with its ledger')
          return Number(counts.entries)
        },
      }
    },
  }
}
