/** Tables of the edge part, as Kysely sees them. */
export type EdgeTables = object
