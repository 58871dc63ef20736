/**
 * What the queries of every noun are given: Kysely on one connection, inside one transaction, and what the database at
 * hand can do about rows that a decision rests on.
 */
import type { Compilable, Kysely } from 'kysely'
import type { Tables } from './tables.ts'

export interface Sql {
  readonly db: Kysely<Tables>
  /** False where a transaction is alone anyway: SQLite has no row locks and needs none. */
  readonly lockRows: boolean
  readonly rules: RuleLocks
  /**
   * Sends a query that locks what it reads, and does not wait for its answer: the rows may be had as soon as a later
   * statement is answered. Null: there is nothing to be gained.
   */
  readonly ahead: (<R>(query: Compilable<R>) => Promise<() => readonly R[]>) | null
}

/** Who may read and who may change the rules of an instance, until the transaction ends. */
export interface RuleLocks {
  /** Shared by many: nobody changes the rules of the instance. */
  hold(instanceId: string): Promise<void>
  /** Held by one: nobody else changes the rules of the instance or decides by them. */
  lock(instanceId: string): Promise<void>
  /** `lock` for all instances, those that are being made included. */
  lockAll(): Promise<void>
  /** Before an instance is made. */
  add(): Promise<void>
}

const nothing = async (): Promise<void> => {
  // Nobody else is there.
}

/** Where a transaction is alone, or only reads. */
export const ALONE: RuleLocks = { hold: nothing, lock: nothing, lockAll: nothing, add: nothing }

/** Values of one statement: below the least number of parameters that any supported database takes. */
const VALUES_MAX = 500

/** Splits a list so that each part fits one statement. */
export function* chunks<T>(list: readonly T[], size = VALUES_MAX): Generator<readonly T[]> {
  for (let at = 0; at < list.length; at += size) yield list.slice(at, at + size)
}

export function toFlag(value: boolean): bigint {
  return value ? 1n : 0n
}

export function toBigint(value: number | null): bigint | null {
  return value === null ? null : BigInt(value)
}

export function toNumber(value: bigint | null): number | null {
  return value === null ? null : Number(value)
}
