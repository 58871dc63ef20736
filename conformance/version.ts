/** The versions of the interface, as they stand in its paths. */
export type Version = 'v1.0' | 'v1.1'
export const VERSIONS: readonly Version[] = ['v1.0', 'v1.1']
