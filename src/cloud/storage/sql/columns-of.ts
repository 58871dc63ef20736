/** `lastSyncAt`: `last_sync_at`. */
type SnakeCase<Name extends string> = Name extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${SnakeCase<Rest>}`
  : ''

type Column<Value> = Value extends string | null ? Value : Value extends bigint | number | boolean ? bigint : string

/** The columns of a record: one for each field. Numbers are `bigint`, flags `0n` or `1n`, lists and objects JSON. */
export type ColumnsOf<Fields> = {
  -readonly [Name in keyof Fields & string as SnakeCase<Name>]: Column<Fields[Name]>
}
