/** What the edge part keeps besides the service's own records: devices, incarnations, segments. */

/** Reads of the edge part. */
export type EdgeReader = object

/** Writes of the edge part. */
export type EdgeTransaction = EdgeReader
