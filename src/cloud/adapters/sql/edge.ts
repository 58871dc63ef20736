/** The edge part's records in SQL. */
import type { EdgeReader, EdgeTransaction } from '../../app/edge/store.ts'
import type { Sql } from './sql.ts'

export function edgeReader(_sql: Sql): EdgeReader {
  return {}
}

export function edgeTransaction(sql: Sql): EdgeTransaction {
  return edgeReader(sql)
}
